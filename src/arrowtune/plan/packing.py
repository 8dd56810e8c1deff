"""Packing: which examples share a micro-batch row.

Both packers take the examples longest first. `best_fit` puts each into the fullest row that still has room, `first_fit`
into the oldest one; both need at most 11/9 of the optimal number of rows plus one (Johnson, 1973; Dosa, 2007), and on
lengths of real chats about the optimum. Each works in O(n log capacity) or O(n log rows).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from arrowtune.compiled import compiled
from arrowtune.errors import PlanError
from arrowtune.protocols import Examples

Ints = npt.NDArray[np.int64]


def pack(lengths: Ints, capacity: int, method: str) -> Ints:
    """Assign examples to rows.

    Args:
        lengths: int64[n], aligned lengths, each in [1, capacity].
        capacity: Positions of a row.
        method: `best_fit`, `first_fit`, or `none` for one example a row.

    Returns:
        int64[n]: the row of each example; rows are numbered without gaps.
    """
    if method == "none":
        return np.arange(len(lengths), dtype=np.int64)
    # Longest first, equal lengths in the order of the step: the result depends on nothing else.
    order = np.argsort(_narrow(capacity - lengths, capacity), kind="stable")
    assign = best_fit if method == "best_fit" else first_fit
    rows = np.empty(len(lengths), dtype=np.int64)
    rows[order] = assign(lengths[order], capacity)
    return rows


def _narrow(values: Ints, most: int) -> npt.NDArray[np.integer[Any]]:
    # numpy sorts 16-bit integers by radix, several times faster than wider ones.
    return values.astype(np.uint16) if most < 2**16 else values


def rows_of(assigned: Ints) -> list[Ints]:
    """The examples of each row, in the order of the step."""
    order = np.argsort(assigned, kind="stable")
    ends = np.cumsum(np.bincount(assigned)).tolist() if len(assigned) else []
    return [order[start:end] for start, end in pairwise([0, *ends])]


def lower_bound(lengths: Ints, capacity: int) -> int:
    """A number of rows that no packing can beat: all tokens in full rows, or each example above half in a row alone."""
    return max(-(-int(lengths.sum()) // capacity), int((2 * lengths > capacity).sum()))


def check_fits(store: Examples, capacity: int, align: int) -> None:
    """Refuse a store with an example that no row can hold.

    Raises:
        PlanError: With the row, and the capacity that would do.
    """
    if not len(store):
        return
    row = int(np.argmax(store.lengths))
    needed = -(-int(store.lengths[row]) // align) * align
    if needed > capacity:
        raise PlanError(
            f"example {row} of {store.name!r} takes up {needed} positions, more than a micro-batch row of {capacity}",
            hint=f"set batch.micro_tokens to at least {needed}, or a smaller data.max_length",
        )


@compiled
def best_fit(lengths: Ints, capacity: int) -> Ints:
    """Best fit over lengths in the order given.

    Rows with the same room form a stack; a tree over rooms, whose nodes count the rows below them, finds the least
    sufficient room.
    """
    leaves = 1
    while leaves < capacity + 1:
        leaves *= 2
    count = np.zeros(2 * leaves, dtype=np.int32)
    top = np.full(capacity + 1, -1, dtype=np.int64)
    below = np.empty(len(lengths), dtype=np.int64)
    rows = np.empty(len(lengths), dtype=np.int64)
    opened = 0
    for item in range(len(lengths)):
        length = lengths[item]
        # From the leaf of this length to the next subtree on the right that holds a row, then down to its least room.
        node = leaves + length
        while node > 0 and count[node] == 0:
            while node % 2 == 1:
                node //= 2
            node += node > 0
        while 0 < node < leaves:
            node = 2 * node + (count[2 * node] == 0)
        if node > 0:
            room = node - leaves
            row = top[room]
            top[room] = below[row]
            while node > 0:
                count[node] -= 1
                node //= 2
        else:
            room, row = capacity, opened
            opened += 1
        rows[item] = row
        room -= length
        below[row] = top[room]
        top[room] = row
        node = leaves + room
        while node > 0:
            count[node] += 1
            node //= 2
    return rows


@compiled
def first_fit(lengths: Ints, capacity: int) -> Ints:
    """First fit over lengths in the order given: a tree over rows holds the most room below each node."""
    leaves = 1
    while leaves < len(lengths):
        leaves *= 2
    room = np.full(2 * leaves, capacity, dtype=np.int64)
    rows = np.empty(len(lengths), dtype=np.int64)
    for item in range(len(lengths)):
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < lengths[item]:
                node += 1
        rows[item] = node - leaves
        room[node] -= lengths[item]
        node //= 2
        while node > 0:
            room[node] = max(room[2 * node], room[2 * node + 1])
            node //= 2
    return rows
