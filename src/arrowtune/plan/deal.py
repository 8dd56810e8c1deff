"""Dealing the rows of a step to ranks, so that all ranks are busy for the same time in every micro-step."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from arrowtune.compiled import compiled
from arrowtune.types import Row

Ints = npt.NDArray[np.int64]

_LINEAR = 16_384
"""Attention costs as much as all matrix products of a token where a document is about this long (12 times the hidden
size of a mid-sized decoder). Only the balance depends on it."""


def cost(lengths: Ints) -> Ints:
    """What documents cost to train on, in arbitrary units: a linear part, and attention that is quadratic."""
    return lengths * (_LINEAR + lengths)


class Dealt(Sequence[list[Row]]):
    """The rows of every rank, in micro-step order; a rank's are put together when they are asked for.

    Args:
        assigned: int64[n], the row of each example.
        slots: int64[micro-steps, ranks], which row is computed where; those beyond the last row stand for nothing to do.
    """

    def __init__(self, assigned: Ints, slots: Ints) -> None:
        self._slots = slots
        self._order = np.argsort(assigned, kind="stable")
        self._ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(assigned, minlength=slots.size))])

    def __len__(self) -> int:
        return int(self._slots.shape[1])

    @overload
    def __getitem__(self, rank: int) -> list[Row]: ...
    @overload
    def __getitem__(self, rank: slice) -> list[list[Row]]: ...
    def __getitem__(self, rank: int | slice) -> list[Row] | list[list[Row]]:
        if isinstance(rank, slice):
            return [self[one] for one in range(len(self))[rank]]
        return [self._order[self._ends[slot] : self._ends[slot + 1]] for slot in self._slots[:, rank].tolist()]

    @property
    def empty(self) -> int:
        """How many rows stand for nothing to do."""
        rows = np.diff(self._ends)
        return len(rows) - int(np.count_nonzero(rows))


def deal(lengths: Ints, assigned: Ints, capacity: int, world: int, *, spread: bool) -> Dealt:
    """The rows of every rank, in micro-step order.

    All ranks wait for the slowest in every micro-step, so rows of like cost share one. Where the packing leaves room,
    the same number of micro-steps is filled more evenly: on eight ranks a batch that packs into four rows becomes eight
    lighter ones, rather than four ranks at work and four waiting.

    Args:
        lengths: int64[n], aligned lengths of the examples of the step.
        assigned: int64[n], the packed row of each.
        capacity: Positions of a row.
        world: Number of ranks.
        spread: Whether examples may move to other rows; the loss does not depend on it.

    Returns:
        As many rows for each rank; an empty row stands for nothing to do.
    """
    rows = int(assigned.max()) + 1 if len(assigned) else 0
    micro_steps = max(1, -(-rows // world))
    slots = micro_steps * world
    costs = cost(lengths)
    if spread and world > 1 and len(assigned):
        order = np.argsort(-lengths, kind="stable")
        evenly = spread_out(lengths[order], costs[order], capacity, slots)
        if evenly[0] >= 0:
            assigned = np.empty_like(assigned)
            assigned[order] = evenly
    totals = np.bincount(assigned, weights=costs, minlength=slots)
    # The dearest first: a micro-step that does not fit the device's memory is found at once, not at the end.
    ranked = np.argsort(-totals, kind="stable").reshape(micro_steps, world)
    ranked[1::2] = ranked[1::2, ::-1]
    return Dealt(assigned, ranked)


@compiled
def spread_out(lengths: Ints, costs: Ints, capacity: int, slots: int) -> Ints:
    """Longest first, each example into the cheapest row (Graham, 1969); `[-1, ...]` where that overfills a row."""
    heap = [(np.int64(0), np.int64(slot)) for slot in range(slots)]
    loads = np.zeros(slots, dtype=np.int64)
    assigned = np.empty(len(lengths), dtype=np.int64)
    for item in range(len(lengths)):
        total, slot = heap[0]
        if loads[slot] + lengths[item] > capacity:
            assigned[0] = -1
            return assigned
        loads[slot] += lengths[item]
        assigned[item] = slot
        heapq.heapreplace(heap, (total + costs[item], slot))
    return assigned
