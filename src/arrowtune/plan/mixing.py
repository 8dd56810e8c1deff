"""How sources are mixed, as a run asks for it: weights, which may follow sizes or steps, and how often rows may be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from arrowtune.plan.shares import Phase

Exhausted = Literal["repeat", "stop", "error"]


@dataclass(frozen=True, slots=True)
class Mixing:
    """What is asked for. One entry for each source where there are entries.

    Attributes:
        weights: A share, or `size` or `size^0.5`, a power of the number of examples; None draws every row once per epoch.
        schedule: `(until, weights by name)`: up to which step which weights hold; the last has no end. Goes before `weights`.
        max_passes: How often each row may be seen at most; None for as often as needed.
        exhausted: What becomes of a source whose rows were all seen: it begins again, the run ends, or that is an error.
    """

    weights: Sequence[float | str] | None = None
    schedule: Sequence[tuple[int | None, Mapping[str, float]]] = ()
    max_passes: Sequence[float | None] = ()
    exhausted: Exhausted = "repeat"

    @property
    def weighted(self) -> bool:
        """Whether sources have shares."""
        return self.weights is not None or bool(self.schedule)

    def phases(self, sizes: Sequence[int], names: Sequence[str], epoch_steps: int, batch: int) -> list[Phase]:
        """The weights over the run, in numbers.

        Args:
            sizes: Examples of each source.
            names: Of the sources.
            epoch_steps: Steps of an epoch.
            batch: Examples of a step.
        """
        if not self.schedule:
            assert self.weights is not None
            return [Phase(tuple(_number(weight, size) for weight, size in zip(self.weights, sizes, strict=True)))]

        def draw(step: int) -> int:
            epoch, number = divmod(step, epoch_steps)
            return epoch * sum(sizes) + number * batch

        return [
            Phase(tuple(float(weights.get(name, 0)) for name in names), None if until is None else draw(until))
            for until, weights in self.schedule
        ]

    def caps(self, sizes: Sequence[int]) -> list[int | None]:
        """The most draws of each source."""
        most = self.max_passes or [None] * len(sizes)
        usual = None if self.exhausted == "repeat" else 1.0
        passes = [usual if asked is None else asked for asked in most]
        return [None if times is None else max(1, round(times * size)) for times, size in zip(passes, sizes, strict=True)]

    def text(self) -> str:
        """What a source may be seen of, for the fingerprint; empty where nothing limits it."""
        return "" if not any(self.max_passes) else ", ".join("" if most is None else f"{most:g}" for most in self.max_passes)


def _number(weight: float | str, size: int) -> float:
    if isinstance(weight, str):
        _, _, power = weight.partition("^")
        return float(size ** float(power or 1))
    return float(weight)
