"""Learning rates as pure functions of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from arrowtune.training.config import ScheduleConfig

Shape = Callable[[float], float]

SHAPES: dict[str, Shape] = {
    "constant": lambda _: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}
"""From progress after the warm-up in [0, 1) to the share of the way from `min_lr` to the peak."""


def warmup_steps(warmup: float, total_steps: int) -> int:
    """Steps of warm-up: `warmup` itself from 1 on, below that its share of all steps, rounded up."""
    steps = math.ceil(warmup * total_steps) if warmup < 1 else math.ceil(warmup)
    return min(steps, total_steps)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate of every step of a run.

    Attributes:
        name: A key of `SHAPES`.
        peak: The learning rate at the end of the warm-up.
        min_lr: Where `linear` and `cosine` would arrive one step after the last.
        warmup: Steps of linear warm-up; the first step already trains with `peak / warmup`.
        total_steps: Steps of the whole run.
    """

    name: str
    peak: float
    min_lr: float
    warmup: int
    total_steps: int

    @classmethod
    def build(cls, config: ScheduleConfig, *, peak: float, total_steps: int) -> Schedule:
        """The schedule of a run of `total_steps` steps."""
        return cls(config.name, peak, config.min_lr, warmup_steps(config.warmup, total_steps), total_steps)

    def lr(self, step: int) -> float:
        """The learning rate of the 0-based `step`."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.total_steps - self.warmup)
        if self.name == "constant":
            return self.peak
        return self.min_lr + (self.peak - self.min_lr) * SHAPES[self.name](progress)
