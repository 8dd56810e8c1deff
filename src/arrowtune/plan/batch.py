"""From addresses to micro-batches: gather the tokens, shift once, restart positions with every document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from arrowtune.plan.order import Refs
from arrowtune.protocols import Examples, Tokens
from arrowtune.types import Batch, Row

T = TypeVar("T", bound=np.generic)


def make_batch(stores: Sequence[Examples], refs: Refs, row: Row, align: int = 1) -> Batch:
    """The micro-batch of one packed row; see `make_batches`."""
    return make_batches(stores, refs, [row], align)[0]


def make_batches(stores: Sequence[Examples], refs: Refs, rows: Sequence[Row], align: int = 1) -> list[Batch]:
    """The micro-batches of some packed rows, with one read per store.

    Args:
        stores: Where the refs point.
        refs: The examples of the step.
        rows: Indices into `refs`; an empty row becomes one position of weight 0, so that every rank has a micro-batch.
        align: Every document is filled up to a multiple of this with a padding document of weight 0.

    Returns:
        One batch per row.
    """
    tokens = gather(stores, refs[np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64)])
    batches, first = [], 0
    for row in rows:
        last = first + len(row)
        batches.append(_batch(tokens, first, last, align) if len(row) else _nothing(align))
        first = last
    return batches


def gather(stores: Sequence[Examples], refs: Refs) -> Tokens:
    """The examples of `refs` end to end, in that order, whichever stores they come from."""
    used = np.unique(refs.stores)
    if len(used) == 1:
        return stores[int(used[0])].fetch(refs.rows)
    parts = [(np.flatnonzero(refs.stores == store), stores[int(store)]) for store in used]
    fetched = [(places, examples.fetch(refs.rows[places])) for places, examples in parts]
    lengths = np.zeros(len(refs), dtype=np.int64)
    for places, tokens in fetched:
        lengths[places] = np.diff(tokens.offsets)
    offsets = _offsets(lengths)
    input_ids = np.empty(offsets[-1], dtype=np.int32)
    loss_weights = np.empty(offsets[-1], dtype=np.float32)
    for places, tokens in fetched:
        target = np.repeat(offsets[places] - tokens.offsets[:-1], lengths[places]) + np.arange(len(tokens.input_ids))
        input_ids[target] = tokens.input_ids
        loss_weights[target] = tokens.loss_weights
    return Tokens(input_ids, loss_weights, offsets)


def _batch(tokens: Tokens, first: int, last: int, align: int) -> Batch:
    offsets = tokens.offsets[first : last + 1]
    span = slice(offsets[0], offsets[-1])
    bounds = offsets - offsets[0]
    input_ids, targets, loss_weights = _shift(tokens.input_ids[span], tokens.loss_weights[span], bounds[1:])
    padding = 0
    if align > 1:
        lengths = np.diff(bounds)
        padded = -(-lengths // align) * align
        places = np.repeat(_offsets(padded)[:-1] - bounds[:-1], lengths) + np.arange(len(input_ids))
        padding = int(padded.sum() - lengths.sum())
        size = len(input_ids) + padding
        input_ids, targets = _spread(input_ids, places, size), _spread(targets, places, size)
        loss_weights = _spread(loss_weights, places, size)
        # A document and the padding behind it take turns; padding of no length is no document.
        pieces = np.stack([lengths, padded - lengths], axis=1).ravel()
        bounds = _offsets(pieces[pieces > 0])
    positions = np.arange(len(input_ids)) - np.repeat(bounds[:-1], np.diff(bounds))
    return Batch(input_ids, targets, loss_weights, positions, bounds.astype(np.int32), padding)


def _shift(
    ids: npt.NDArray[np.int32], weights: npt.NDArray[np.float32], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Inputs, targets and the targets' weights. The last position of a document predicts nothing."""
    input_ids = ids.astype(np.int64)
    targets = np.empty_like(input_ids)
    targets[:-1] = input_ids[1:]
    targets[ends - 1] = 0
    shifted = np.empty_like(weights)
    shifted[:-1] = weights[1:]
    shifted[ends - 1] = 0.0
    return input_ids, targets, shifted


def _spread(array: npt.NDArray[T], places: npt.NDArray[np.int64], size: int) -> npt.NDArray[T]:
    spread = np.zeros(size, dtype=array.dtype)
    spread[places] = array
    return spread


def _offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])


def _nothing(align: int) -> Batch:
    """The micro-batch of a rank with nothing left: the shortest one that runs, counted as padding."""
    zeros = np.zeros(align, dtype=np.int64)
    ends = np.array([0, align], dtype=np.int32)
    return Batch(zeros, zeros.copy(), np.zeros(align, dtype=np.float32), np.arange(align), ends, padding=align)
