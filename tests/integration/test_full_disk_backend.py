"""A disk that fills up under the real backend: one clear error, and the training state goes on."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from arrowtune.backends import open_backend
from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.errors import CheckpointError, ExportError
from arrowtune.training.checkpoint import Checkpoints


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing beyond `size` bytes of a file fails, as on a full disk."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_costs_a_checkpoint_or_an_export_and_not_the_run(tmp_path: Path) -> None:
    backend = open_backend(ModelConfig(), StrategyConfig(), OptimizerConfig(), seed=1)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2, ranks=backend)
    with files_of_at_most(100_000):
        with pytest.raises(CheckpointError, match="could not be saved"):
            checkpoints.save(1, {"plan": {}}, backend.save)
        with pytest.raises(ExportError, match="cannot be written"):
            backend.export(tmp_path / "export", "auto")
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert checkpoints.save(2, {"plan": {}}, backend.save).is_dir()
    backend.close()
