"""From a resolved run to its stores: the only place that knows tokenizer, sources and prepare together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arrowtune.data.prepare import PreparedStore, PrepareJob, prepare_sources
from arrowtune.data.progress import Progress
from arrowtune.data.render import RenderSpec
from arrowtune.data.tokenizer import TokenizerFiles, load_tokenizer
from arrowtune.resolve import Resolved


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
    return RenderSpec.of(files, run.config.data, run.config.tokenizer)


def jobs_of(run: Resolved) -> list[PrepareJob]:
    """One job for each source."""
    return [PrepareJob(config=source.config, name=source.name, role=source.role) for source in run.sources]


def ingest(run: Resolved, *, progress: Progress | None = None) -> Ingested:
    """Prepare every source that has no store yet.

    Raises:
        DataError: A source, its rows or its template.
    """
    spec = render_spec(run)
    private = run.config.run_dir / "stores" if run.config.data.disable_cache else None
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
