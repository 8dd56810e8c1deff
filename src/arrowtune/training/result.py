"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from arrowtune.runfolder import RunFolder
from arrowtune.types import Progress


@dataclass(slots=True)
class TrainResult:
    """How a run ended.

    Attributes:
        progress: Steps, tokens and trained tokens of the whole run.
        started_at: The step it continued from; 0 for a fresh run.
        total_steps: Steps of the plan.
        first_loss, last_loss: Training loss of the first and last step of this call; None where no step was left.
        evals: Per evaluation set, its losses in the order they were measured, with their steps.
        checkpoint, export: Where they are; None where none was asked for.
        tokens_per_second: Mean over the steps of this call.
        idle: Whether everything had been done before this call, which then changed nothing.
    """

    progress: Progress
    started_at: int
    total_steps: int
    first_loss: float | None = None
    last_loss: float | None = None
    evals: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    checkpoint: Path | None = None
    export: Path | None = None
    tokens_per_second: float = 0.0
    idle: bool = False

    @property
    def finished(self) -> bool:
        """Whether every step of the plan is done."""
        return self.progress.step >= self.total_steps

    @classmethod
    def of_finished(cls, folder: RunFolder, progress: Progress, total_steps: int, *, exported: bool) -> TrainResult:
        """The result of a run that was started again and has nothing left to do."""
        path = folder.checkpoints / f"step-{progress.step:08d}"
        return cls(
            progress,
            progress.step,
            total_steps,
            checkpoint=path if path.is_dir() else None,
            export=folder.export if exported else None,
            idle=True,
        )
