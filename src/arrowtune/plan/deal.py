"""Dealing the rows of a step to ranks, so that all ranks are busy for the same time in every micro-step."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from arrowtune.plan.compiled import compiled
from arrowtune.plan.packing import rows_of
from arrowtune.types import Row

Ints = npt.NDArray[np.int64]

_LINEAR = 16_384
"""Attention costs as much as all matrix products of a token where a document is about this long (12 times the hidden
size of a mid-sized decoder). Only the balance depends on it."""


def cost(lengths: Ints) -> Ints:
    """What documents cost to train on, in arbitrary units: a linear part, and attention that is quadratic."""
    return lengths * (_LINEAR + lengths)


def deal(lengths: Ints, assigned: Ints, capacity: int, world: int, *, spread: bool) -> list[list[Row]]:
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
        `world` lists of equal length; an empty row stands for nothing to do.
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
    filled = rows_of(assigned)
    totals = np.bincount(assigned, weights=costs, minlength=slots)
    filled += [np.zeros(0, dtype=np.int64)] * (slots - len(filled))
    # The dearest first: a micro-step that does not fit the device's memory is found at once, not at the end.
    ranked = np.argsort(-totals, kind="stable").reshape(micro_steps, world)
    ranked[1::2] = ranked[1::2, ::-1]
    return [[filled[slot] for slot in ranked[:, rank]] for rank in range(world)]


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
