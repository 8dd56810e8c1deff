"""How the draws of a run are cut into steps: by examples, or by tokens. Any step is found without the ones before it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from arrowtune.compiled import compiled

Ints = npt.NDArray[np.int64]

WINDOW = 65_536
"""Examples that are cut into batches of tokens together."""

_WORTH_KEEPING = 16
"""Windows of an epoch from which on the numbers of their steps are kept on disk."""


class Cut(Protocol):
    """Where each step begins and ends. Batches never straddle epochs."""

    def span(self, step: int) -> tuple[int, int]:
        """The draws of a 0-based step: the first, and how many; none where the run has an end before."""
        ...

    def steps(self, epochs: float) -> int:
        """Steps of so many epochs, at least 1."""
        ...

    def steps_of(self, draws: int) -> int:
        """Steps that take so many draws, counted from the first; the last may take more."""
        ...


class ByExamples:
    """Every step takes as many examples; the last step of an epoch takes what is left.

    Args:
        examples: Of a step.
        epoch: Draws of an epoch.
        end: Draws of the run at most; None for no end.
    """

    def __init__(self, examples: int, epoch: int, end: int | None) -> None:
        self._examples, self._epoch, self._end = examples, epoch, end
        self._per_epoch = -(-epoch // examples)

    def span(self, step: int) -> tuple[int, int]:
        """See `Cut.span`."""
        epoch, number = divmod(step, self._per_epoch)
        first = number * self._examples
        return _within(epoch * self._epoch + first, min(self._examples, self._epoch - first), self._end)

    def steps(self, epochs: float) -> int:
        """See `Cut.steps`."""
        # A third of an epoch of three steps is one step, whatever the last bit of the float says.
        return max(1, math.ceil(round(epochs * self._per_epoch, 9)))

    def steps_of(self, draws: int) -> int:
        """See `Cut.steps_of`."""
        epochs, rest = divmod(draws, self._epoch)
        return epochs * self._per_epoch + -(-rest // self._examples)


class ByTokens:
    """Every step takes examples in order up to a number of tokens.

    An epoch is cut into windows of 65,536 examples. A window has as few batches as taking examples while they fit gives;
    then the batches are evened out: the most tokens that any of them has are as few as they can be. How many steps each
    window has is counted once and kept; where a step begins follows from a sum and its window alone.

    Args:
        tokens: Of a step at most; an example that has more is a step of its own.
        lengths: Tokens of draws `start` to `start + count`.
        epoch: Draws of an epoch.
        end: Draws of the run at most; None for no end.
        kept: Where the steps of an epoch's windows are kept; None keeps them in memory alone.
        threads: How many may ask for lengths at once.
    """

    def __init__(
        self,
        tokens: int,
        lengths: Callable[[int, int], Ints],
        epoch: int,
        end: int | None,
        kept: Callable[[int], Path] | None = None,
        threads: int = 1,
    ) -> None:
        self._tokens, self._lengths, self._epoch, self._end, self._kept = tokens, lengths, epoch, end, kept
        self._windows = -(-epoch // WINDOW)
        self._threads = threads
        self._sums = cache(self._count_or_recall)
        self._bounds = lru_cache(maxsize=4)(self._even)

    def span(self, step: int) -> tuple[int, int]:
        """See `Cut.span`."""
        epoch = 0
        while step >= (whole := int(self._sums(epoch)[-1])):
            if not whole:
                assert self._end is not None
                return self._end, 0
            step -= whole
            epoch += 1
        sums = self._sums(epoch)
        window = int(np.searchsorted(sums, step, side="right")) - 1
        bounds = self._bounds(epoch, window)
        first, last = bounds[step - int(sums[window])], bounds[step - int(sums[window]) + 1]
        return epoch * self._epoch + window * WINDOW + int(first), int(last - first)

    def steps(self, epochs: float) -> int:
        """See `Cut.steps`."""
        whole = int(epochs)
        rest = epochs - whole
        steps = sum(int(self._sums(epoch)[-1]) for epoch in range(whole))
        return max(1, steps + (math.ceil(round(rest * int(self._sums(whole)[-1]), 9)) if rest else 0))

    def steps_of(self, draws: int) -> int:
        """See `Cut.steps_of`."""
        epochs, rest = divmod(draws, self._epoch)
        steps = sum(int(self._sums(epoch)[-1]) for epoch in range(epochs))
        window, within = divmod(rest, WINDOW)
        if rest:
            steps += int(self._sums(epochs)[window])
        if within:
            steps += int(np.searchsorted(self._bounds(epochs, window), within))
        return steps

    def _of_window(self, epoch: int, window: int) -> Ints:
        """Lengths of the examples of a window."""
        first = window * WINDOW
        start, count = _within(epoch * self._epoch + first, min(WINDOW, self._epoch - first), self._end)
        return self._lengths(start, count)

    def _even(self, epoch: int, window: int) -> Ints:
        return even_bounds(self._of_window(epoch, window), self._tokens)

    def _count_or_recall(self, epoch: int) -> Ints:
        """int64[windows + 1]: the steps of an epoch before each window."""
        path = self._kept(epoch) if self._kept is not None and self._windows >= _WORTH_KEEPING else None
        if path is not None and (found := _read(path, self._windows)) is not None:
            return found
        with ThreadPoolExecutor(self._threads) as threads:
            counts = list(threads.map(lambda window: batches(self._of_window(epoch, window), self._tokens), range(self._windows)))
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int64)
        if path is not None:
            _write(path, sums)
        return sums


@compiled
def batches(lengths: Ints, most: int) -> int:
    """How many batches there are if each takes examples while it stays within `most` tokens."""
    count, held = 0, most
    for length in lengths:
        held += length
        if held > most or count == 0:
            count += 1
            held = length
    return count


def even_bounds(lengths: Ints, most: int) -> Ints:
    """Where the batches of a window begin and end: as few as can be, and then the fullest as small as it can be.

    Args:
        lengths: int64[n], tokens of the examples; one of more than `most` is a batch of its own.
        most: Tokens of a batch.

    Returns:
        int64[batches + 1].
    """
    if not len(lengths):
        return np.zeros(1, np.int64)
    count = batches(lengths, most)
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if batches(lengths, middle) <= count:
            high = middle
        else:
            low = middle + 1
    return _bounds(lengths, high, count)


@compiled
def _bounds(lengths: Ints, most: int, count: int) -> Ints:
    bounds = np.zeros(count + 1, dtype=np.int64)
    number, held = 0, 0
    for place in range(len(lengths)):
        if place > 0 and held + lengths[place] > most:
            number += 1
            bounds[number] = place
            held = 0
        held += lengths[place]
    bounds[count] = len(lengths)
    return bounds


def _within(start: int, count: int, end: int | None) -> tuple[int, int]:
    if end is None:
        return start, count
    start = min(start, end)
    return start, min(count, end - start)


def _read(path: Path, windows: int) -> Ints | None:
    try:
        found: Ints = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == (windows + 1,) and found.dtype == np.int64 else None


def _write(path: Path, sums: Ints) -> None:
    """Keep it for the next start; where that cannot be done it is counted again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        with aside.open("wb") as file:
            np.save(file, sums)
        os.replace(aside, path)
    except OSError:
        return
