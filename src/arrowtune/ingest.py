"""From a resolved run to its stores: the only place that knows tokenizer, sources and prepare together."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from arrowtune.backends.sizes import read_config, vocabulary_of
from arrowtune.config import SFTConfig
from arrowtune.data.config import SourceConfig
from arrowtune.data.prepare import PreparedStore, PrepareJob, prepare_sources
from arrowtune.data.progress import Progress
from arrowtune.data.render import RenderSpec
from arrowtune.data.store import Store
from arrowtune.data.tokenizer import TokenizerFiles, load_tokenizer
from arrowtune.errors import EmptyDataset
from arrowtune.plan.selection import select
from arrowtune.protocols import Examples
from arrowtune.resolve import Resolved, resolve

if TYPE_CHECKING:
    from arrowtune.data.explain import Explanation


@dataclass(frozen=True, slots=True)
class Ingested:
    """What the ranks of a run need of the data: the stores, and the tokenizer that made them.

    Attributes:
        stores: One per source, training first, in the order of the run file.
        spec: What made ids and masks of rows; its tokenizer and template go into every export.
    """

    stores: tuple[PreparedStore, ...]
    spec: RenderSpec

    @property
    def tokenizer(self) -> TokenizerFiles:
        """The files the ids come from."""
        return self.spec.files

    def stop_token_ids(self) -> tuple[int, ...]:
        """What generation with the trained model must stop at."""
        from arrowtune.data.render import Renderer

        return Renderer(self.spec.with_engine(False)).stop_token_ids()

    def of_role(self, role: str) -> list[PreparedStore]:
        """The stores of one role, `train` or `eval`."""
        return [store for store in self.stores if store.role == role]


def examples_of(config: SFTConfig, data: Ingested, role: Literal["train", "eval"]) -> list[Examples]:
    """What the sources of a role give to the run, in the order of the run file."""
    sources = config.data.train if role == "train" else config.data.eval
    return [given(Store(store.path, name=store.name), source) for store, source in zip(data.of_role(role), sources, strict=True)]


def given(store: Store, source: SourceConfig) -> Examples:
    """What a source gives to a run of all examples of its store: the rows of its `split`, a sample of them, repeated.

    Raises:
        EmptyDataset: Nothing is left.
    """
    within = None
    if not source.rows.whole:
        raw = store.raw_rows()
        start, stop = np.searchsorted(raw, source.rows.bounds(store.manifest["rows_read"])).tolist()
        within = np.arange(start, stop, dtype=np.int64)
        if start >= stop:
            raise EmptyDataset(
                f"source {store.name!r}: no example comes of the rows {source.split} of {store.manifest['rows_read']}",
                hint="name other rows with split",
            )
    return select(store, source.sample, source.repeat, within)


def render_spec(run: Resolved) -> RenderSpec:
    """What makes ids and masks of rows; the tokenizer is the run's own, else the model's."""
    model = run.config.model
    files = load_tokenizer(
        run.config.tokenizer,
        model.path,
        gguf_file=model.gguf_file,
        revision=model.revision,
        trust_remote_code=model.trust_remote_code,
        cache=Path(run["data.cache_dir"]),
    )
    return RenderSpec.of(files, run.config.data, run.config.tokenizer, vocabulary_of(read_config(model)))


def jobs_of(run: Resolved) -> list[PrepareJob]:
    """One job for each source."""
    return [PrepareJob(config=source.config, name=source.name, role=source.role) for source in run.sources]


@contextmanager
def private_stores(config: SFTConfig, folder: str = "stores") -> Iterator[None]:
    """With `data.disable_cache`: remove the stores that `ingest` put into this folder of the run, however the block ends."""
    try:
        yield
    finally:
        if config.data.disable_cache:
            shutil.rmtree(config.run_dir / folder, ignore_errors=True)


def explain(config: SFTConfig) -> list[Explanation]:
    """Say for every source whether its store is there, and which input of its identity differs if not. Prepares nothing.

    Raises:
        ConfigError: The run contradicts itself.
        DataError: A source or the tokenizer cannot be read.
    """
    from arrowtune.data.explain import explain_sources

    run = resolve(config, devices=1, gpu=False, for_training=False)
    return explain_sources(jobs_of(run), render_spec(run), config.data, cache=Path(run["data.cache_dir"]))


def ingest(run: Resolved, *, folder: str = "stores", progress: Progress | None = None) -> Ingested:
    """Prepare every source that has no store yet.

    Args:
        run: The run.
        folder: The folder within the run's where the stores go with `data.disable_cache`.
        progress: Told of the work.

    Raises:
        DataError: A source, its rows or its template.
    """
    spec = render_spec(run)
    private = run.config.run_dir / folder if run.config.data.disable_cache else None
    stores: Sequence[PreparedStore] = prepare_sources(
        jobs_of(run),
        spec,
        run.config.data,
        cache=Path(run["data.cache_dir"]),
        workers=run["data.workers"],
        private=private,
        progress=progress,
    )
    return Ingested(tuple(stores), spec)
