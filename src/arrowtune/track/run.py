"""What a tracker knows of its run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker knows of its run.

    Attributes:
        folder: The run folder.
        total_steps: Steps of the plan.
        resume_step: The step the run continues from; 0 for a fresh one.
    """

    folder: Path
    total_steps: int
    resume_step: int
