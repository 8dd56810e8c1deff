"""Which source each draw of a whole run comes from: mixtures one after the other.

A mixture holds until the weights change or a source has been read as often as it may be; then the next one begins, over
the sources that are left. Where each begins follows from the sizes and the weights alone, so any draw is found at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arrowtune.errors import PlanError
from arrowtune.plan.mixture import Mixture, mixture

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Phase:
    """Weights up to a draw.

    Attributes:
        weights: Of each source; 0 leaves it out.
        until: The draw before which the phase ends; None for the rest of the run.
    """

    weights: tuple[float, ...]
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A mixture from one draw on.

    Attributes:
        start: The first draw.
        mixture: Over the sources that take part.
        sources: Which those are.
        before: How often each source of the run was drawn before.
    """

    start: int
    mixture: Mixture
    sources: tuple[int, ...]
    before: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shares:
    """The mixtures of a run, in order. Build it with `lay_out`.

    Attributes:
        segments: At least one.
        end: The number of draws after which nothing may be drawn any more; None where there is no end.
        ended_by: The source whose rows ran out there.
    """

    segments: tuple[Segment, ...]
    end: int | None = None
    ended_by: int | None = None

    def draw(self, start: int, count: int) -> tuple[npt.NDArray[np.int32], Ints]:
        """The sources of draws `start` to `start + count`, and for each how often that source was drawn before.

        Returns:
            int32[count] and int64[count].
        """
        sources, drawn = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        while count:
            number = self._segment_at(start)
            segment = self.segments[number]
            stop = self.segments[number + 1].start if number + 1 < len(self.segments) else start + count
            taken = min(count, stop - start)
            turns, before = segment.mixture.draw(start - segment.start, taken)
            own = np.array(segment.sources, np.int32)[turns]
            sources.append(own)
            drawn.append(before + np.array(segment.before, np.int64)[own])
            start, count = start + taken, count - taken
        return np.concatenate(sources), np.concatenate(drawn)

    def counts(self, draws: int) -> list[int]:
        """How many of the first `draws` draws come from each source."""
        segment = self.segments[self._segment_at(max(0, draws - 1))]
        counts = list(segment.before)
        for source, more in zip(segment.sources, segment.mixture.counts(draws - segment.start), strict=True):
            counts[source] += more
        return counts

    def _segment_at(self, draw: int) -> int:
        return bisect_right(self.segments, draw, key=lambda segment: segment.start) - 1


def lay_out(phases: Sequence[Phase], caps: Sequence[int | None], names: Sequence[str], *, stop: bool = False) -> Shares:
    """The mixtures of a run.

    Args:
        phases: The weights over the run; the last has no end.
        caps: How many draws of each source there may be at most.
        names: Of the sources, for errors.
        stop: End where the first source runs out, rather than to go on with the others.

    Raises:
        PlanError: A weight is not usable, or a phase has no source to draw from.
    """
    segments: list[Segment] = []
    at, before = 0, [0] * len(caps)
    for phase in phases:
        while phase.until is None or at < phase.until:
            sources = [
                source
                for source, (weight, cap) in enumerate(zip(phase.weights, caps, strict=True))
                if weight and (cap is None or before[source] < cap)
            ]
            if not sources:
                if not segments:
                    raise PlanError("no source has a weight", hint="give at least one source a weight above 0")
                return Shares(tuple(segments), at, None)
            mix = mixture([phase.weights[source] for source in sources], [names[source] for source in sources])
            segments.append(Segment(at, mix, tuple(sources), tuple(before)))
            left, first = _first_to_run_out(mix, sources, caps, before)
            to_go = None if phase.until is None else phase.until - at
            if left is None and to_go is None:
                return Shares(tuple(segments))
            ran_out = left is not None and (to_go is None or left <= to_go)
            length = left if ran_out else to_go
            assert length is not None
            for source, more in zip(sources, mix.counts(length), strict=True):
                before[source] += more
            at += length
            if ran_out and stop:
                return Shares(tuple(segments), at, first)
    raise AssertionError("the last phase has no end")


def _first_to_run_out(
    mix: Mixture, sources: Sequence[int], caps: Sequence[int | None], before: Sequence[int]
) -> tuple[int | None, int | None]:
    """After how many draws of a mixture a source has none left, and which; None where none ever runs out."""
    found = [
        (mix.draws_until(index, cap - before[source]), source)
        for index, source in enumerate(sources)
        if (cap := caps[source]) is not None
    ]
    return min(found) if found else (None, None)
