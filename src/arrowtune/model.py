"""The model of a run on its devices: fresh, as a checkpoint has it, measured, and written for `transformers`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arrowtune.backends import open_backend
from arrowtune.config import SFTConfig
from arrowtune.errors import ArrowtuneError
from arrowtune.ingest import Ingested, examples_of
from arrowtune.plan import EvalPlan
from arrowtune.protocols import Backend
from arrowtune.resolve import Resolved
from arrowtune.training.checkpoint import Checkpoint, Checkpoints
from arrowtune.training.export import check_replaceable, finish_export
from arrowtune.training.together import leader, together


def open_model(config: SFTConfig) -> Backend:
    """The model of the run on its devices, before any checkpoint."""
    return open_backend(config.model, config.strategy, config.optimizer, seed=config.train.seed)


@contextmanager
def restored_model(config: SFTConfig, path: Path) -> Iterator[tuple[Backend, Checkpoint]]:
    """The model of a checkpoint, on its devices."""
    backend = open_model(config)
    try:
        checkpoint = Checkpoints(path.parent, keep=1, ranks=backend).at(path)
        together(backend, lambda: backend.load(path))
        yield backend, checkpoint
    finally:
        backend.close()


def eval_plans(run: Resolved, data: Ingested, backend: Backend) -> list[EvalPlan]:
    """The evaluation sets, in the order of the run file."""
    packing = "none" if backend.why_not_packed else run.config.batch.packing
    sets = examples_of(run.config, data, "eval")
    return [EvalPlan(examples, run["batch.micro_tokens"], packing) for examples in sets]


def export_model(backend: Backend, out: Path, dtype: str, data: Ingested, *, step: int, merge_lora: bool = True) -> list[str]:
    """Write the model as it stands to `out`; complete or absent. Every rank calls it.

    Args:
        backend: The model.
        out: The folder; an older export there is replaced.
        dtype: Of the weights, as `export.dtype`.
        data: Holds the tokenizer and the template that were trained.
        step: Optimizer steps done, for the folder's marker.
        merge_lora: Write whole weights where adapters were trained, as `export.merge_lora`.

    Returns:
        What had to be mended, one sentence each.

    Raises:
        ExportError: The folder cannot be written; nothing is left beside it.
    """
    final = out.absolute()
    partial = partial_of(final)
    leader(backend, lambda: _make_way(partial, final))
    try:
        together(backend, lambda: backend.export(partial, dtype, merge_lora=merge_lora))
        return leader(
            backend,
            lambda: finish_export(
                partial,
                final,
                tokenizer_folder=data.tokenizer.folder,
                chat_template=data.tokenizer.chat_template,
                stop_token_ids=data.stop_token_ids(),
                about={"step": step, "dtype": dtype},
            ),
        )
    except ArrowtuneError:
        if backend.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def partial_of(final: Path) -> Path:
    """Where an export is written before it gets its name."""
    return final.with_name(f".{final.name}.partial")


def _make_way(partial: Path, final: Path) -> None:
    check_replaceable(final)
    shutil.rmtree(partial, ignore_errors=True)
