"""A few optimizer steps on a small model: what the ranks of the backend tests run."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np

from arrowtune.backends import open_backend
from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.errors import CheckpointError
from arrowtune.fingerprint import digest_file
from arrowtune.plan import Plan
from arrowtune.plan.config import BatchConfig
from arrowtune.training import complete
from arrowtune.training.checkpoint import Checkpoints
from arrowtune.types import Batch
from support.parity import examples
from support.together import GlooRanks

LR = 3e-3
# Adam divides a gradient by its own size: without this eps one that is rounding alone would move a weight as far as any.
OPTIMIZER = OptimizerConfig(lr=LR, weight_decay=0.1, max_grad_norm=0.5, eps=1e-6)


def opened(model: str | Path, **settings: Any) -> Any:
    """The fsdp backend on the ranks there are."""
    return open_backend(ModelConfig(path=str(model), **settings), StrategyConfig(), OPTIMIZER, seed=5)


def plan() -> Plan:
    """Three examples a step, so that two ranks do not get the same share."""
    store = examples(12)
    return Plan.build([store], weights=None, batch=BatchConfig(examples=3), capacity=64, seed=0, epochs=2)


def train(backend: Any, first: int, last: int, lr: float = LR) -> list[float]:
    """The losses of the 0-based steps `[first, last)`."""
    steps, losses = plan(), []
    for step in range(first, last):
        weight = steps.totals(step).loss_weight
        batches = steps.batches(step, backend.rank, backend.world_size)
        losses.append(backend.train_step(batches, loss_weight=weight, lr=lr).loss_sum / weight)
    return losses


def weights(backend: Any) -> dict[str, np.ndarray]:
    """Copies of all weights, whole."""
    return {name: parameter.full_tensor().detach().numpy().copy() for name, parameter in backend.model.named_parameters()}


def logits_of(backend: Any, document: list[int]) -> Any:
    """The logits of one document, [tokens, vocabulary]."""
    ids = np.array(document, np.int64)
    batch = Batch(
        input_ids=ids,
        targets=np.roll(ids, -1),
        loss_weights=np.ones(len(ids), np.float32),
        position_ids=np.arange(len(ids)),
        cu_seqlens=np.array([0, len(ids)], np.int32),
    )
    return backend.logits(batch)


def start(model: Path | str, folder: Path, **settings: Any) -> list[float]:
    """Train two steps, save into the folder, train two more."""
    backend = opened(model, **settings)
    losses = train(backend, 0, 2)
    if backend.rank == 0:
        folder.mkdir()
    backend.gather(None)
    backend.save(folder)
    losses += train(backend, 2, 4)
    backend.close()
    return losses


def go_on(model: Path | str, folder: Path) -> list[float]:
    """Load from the folder, train two steps."""
    backend = opened(model)
    backend.load(folder)
    losses = train(backend, 2, 4)
    backend.close()
    return losses


def save_and_tell(model: Path, folder: Path) -> list[str]:
    """Save a checkpoint; the names of the files that this rank digested for it."""
    backend = opened(model)
    digested: list[str] = []

    def told(path: Path) -> str:
        digested.append(path.name)
        return digest_file(path)

    complete.digest_file = told  # type: ignore[attr-defined]  # in a process of its own
    Checkpoints(folder, keep=2, ranks=backend).save(1, {"plan": {}}, backend.save)
    backend.close()
    return digested


def save_with_a_file_that_vanishes(folder: Path, rank: int) -> tuple[str, list[str]]:
    """Save a checkpoint; one rank finds nothing where it wrote. The error, and what is left."""
    ranks = GlooRanks()

    def write(partial: Path) -> list[Path]:
        own = partial / f"{ranks.rank}.bin"
        if ranks.rank != rank:
            own.write_text("weights")
        return [own]

    try:
        Checkpoints(folder, keep=2, ranks=ranks).save(1, {"plan": {}}, write)
    except CheckpointError as error:
        ranks.gather(None)
        return error.message, [path.name for path in folder.iterdir()]
    raise AssertionError("nothing was raised")


def save_with_a_full_disk(model: Path, folder: Path, full_on: int) -> tuple[str, list[str], list[str]]:
    """Save two checkpoints; for the second, one rank can write no file of more than a few bytes.

    Returns:
        The error, the folders left, and what is wrong with the newest (nothing).
    """
    backend = opened(model)
    checkpoints = Checkpoints(folder, keep=2, ranks=backend)
    state: dict[str, Any] = {"progress": {}, "plan": {}}
    checkpoints.save(1, state, backend.save)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if backend.rank == full_on:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        checkpoints.save(2, state, backend.save)
        message = "nothing happened"
    except CheckpointError as error:
        message = error.message
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    newest = checkpoints.newest()
    assert newest is not None
    backend.load(newest.path)
    left = sorted(path.name for path in folder.iterdir())
    backend.close()
    return message, left, checkpoints.passed_over
