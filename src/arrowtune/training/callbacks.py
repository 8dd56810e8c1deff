"""Hooks for code that wants to watch or stop a run without owning its loop."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from arrowtune.types import EvalStats, Progress, StepStats


class Run(Protocol):
    """What a callback may ask of the trainer."""

    @property
    def progress(self) -> Progress: ...

    def stop(self) -> None:
        """End after the current step, with a checkpoint."""
        ...


class Callback:
    """Override what you need. Every rank calls every hook, in this order: start, (step, evaluated*, saved?)*, end.

    After the last step the checkpoint comes before the evaluation, so that nothing that follows can lose the training.

    A hook that raises ends the run with that error.
    """

    def on_start(self, run: Run) -> None:
        """Before the first step, after a resume."""

    def on_step(self, run: Run, stats: StepStats) -> None:
        """After every optimizer step."""

    def on_evaluated(self, run: Run, stats: EvalStats) -> None:
        """After every measured evaluation set."""

    def on_saved(self, run: Run, checkpoint: Path) -> None:
        """After a checkpoint is complete."""

    def on_end(self, run: Run) -> None:
        """After the last step, its evaluation and its checkpoint."""
