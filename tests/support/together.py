"""What ranks do together in tests, and how it went on each of them."""

from __future__ import annotations

from typing import Any

from arrowtune.config import SFTConfig
from arrowtune.errors import ArrowtuneError, CheckpointError, ConfigError
from arrowtune.settle import Inputs
from arrowtune.trainer import SFTTrainer
from arrowtune.training.together import leader, together


class OneRank:
    """A run of one rank."""

    rank = 0

    def gather(self, value: Any) -> list[Any]:
        """The one value."""
        return [value]


class GlooRanks:
    """The ranks of the process group there is."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.rank = dist.get_rank()

    def gather(self, value: Any) -> list[Any]:
        """The value of every rank."""
        import torch.distributed as dist

        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values


def fail_alone() -> tuple[str, str, str, int]:
    """Rank 0 cannot write; what this rank raised, once the ranks have spoken again."""
    ranks = GlooRanks()

    def write() -> None:
        assert ranks.rank == 0
        raise ConfigError("metrics.jsonl cannot be written", hint="choose another output_dir")

    try:
        leader(ranks, write)
    except ArrowtuneError as error:
        ranks.gather(None)
        return type(error).__name__, error.message, error.hint, error.exit_code
    raise AssertionError("nothing was raised")


def fail_somewhere() -> tuple[str, str, str, int]:
    """Rank 1 fails in what all do."""
    ranks = GlooRanks()

    def save() -> None:
        if ranks.rank == 1:
            raise CheckpointError("rank 1 has no room")

    try:
        together(ranks, save)
    except ArrowtuneError as error:
        ranks.gather(None)
        return type(error).__name__, error.message, error.hint, error.exit_code
    raise AssertionError("nothing was raised")


def fail_unforeseen() -> str:
    """Rank 0 meets a bug."""
    ranks = GlooRanks()
    try:
        leader(ranks, lambda: {}["lm_head"])
    except Exception as error:  # noqa: BLE001
        ranks.gather(None)
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")


def train_in_spoiled_folders(runs: list[tuple[SFTConfig, Inputs]]) -> list[str]:
    """Train each run in turn; how it failed on this rank."""
    failures = []
    for config, inputs in runs:
        try:
            with SFTTrainer(config, inputs=inputs) as trainer:
                trainer.train()
        except ArrowtuneError as error:
            failures.append(f"{type(error).__name__}: {error}")
    return failures
