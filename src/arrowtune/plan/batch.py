"""From addresses to micro-batches: gather the tokens, shift once, restart positions with every document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from arrowtune.compiled import compiled, compiles
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
    everything = np.concatenate([*rows, np.zeros(0, np.int64)])
    if not len(everything):
        return [_nothing(align) for _ in rows]
    laid = _lay_out(gather(stores, refs[everything]), align)
    ends = np.cumsum([len(row) for row in rows]).tolist()
    return [_cut(laid, first, last) if first < last else _nothing(align) for first, last in zip([0, *ends], ends, strict=False)]


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


class _Laid(NamedTuple):
    """All documents of a rank's step, shifted and aligned, end to end; micro-batches are slices of it.

    Attributes:
        input_ids, targets, loss_weights, position_ids: As in `Batch`.
        lengths: int64[documents].
        starts: int64[documents + 1], where each document starts, its padding behind it.
        padded: Whether any has padding.
    """

    input_ids: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    loss_weights: npt.NDArray[np.float32]
    position_ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    padded: bool


def _lay_out(tokens: Tokens, align: int) -> _Laid:
    lengths = np.diff(tokens.offsets)
    if align == 1 and compiles():
        return _Laid(*_laid_at_once(tokens.input_ids, tokens.loss_weights, tokens.offsets), lengths, tokens.offsets, False)
    padded = -(-lengths // align) * align
    starts = _offsets(padded)
    input_ids, targets, loss_weights = _shift(tokens)
    if starts[-1] > len(input_ids):
        places = np.repeat(starts[:-1] - tokens.offsets[:-1], lengths) + np.arange(len(input_ids))
        input_ids, targets = _spread(input_ids, places, starts[-1]), _spread(targets, places, starts[-1])
        loss_weights = _spread(loss_weights, places, starts[-1])
    bounds = _bounds(lengths, padded)
    positions = np.arange(bounds[-1])
    positions -= np.repeat(bounds[:-1], np.diff(bounds))
    return _Laid(input_ids, targets, loss_weights, positions, lengths, starts, bool(starts[-1] > tokens.offsets[-1]))


@compiled
def _laid_at_once(
    ids: npt.NDArray[np.int32], weights: npt.NDArray[np.float32], offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Inputs, targets, their weights and positions in one pass over the tokens, where nothing is padded."""
    size = len(ids)
    inputs, targets = np.empty(size, np.int64), np.empty(size, np.int64)
    shifted, positions = np.empty(size, np.float32), np.empty(size, np.int64)
    for document in range(len(offsets) - 1):
        start, stop = offsets[document], offsets[document + 1]
        for place in range(start, stop):
            inputs[place] = ids[place]
            positions[place] = place - start
        for place in range(start, stop - 1):
            targets[place] = ids[place + 1]
            shifted[place] = weights[place + 1]
        targets[stop - 1] = 0
        shifted[stop - 1] = 0.0
    return inputs, targets, shifted, positions


def _cut(laid: _Laid, first: int, last: int) -> Batch:
    """The micro-batch of consecutive documents."""
    starts = laid.starts[first : last + 1]
    begin, end = int(starts[0]), int(starts[-1])
    span, padding = slice(begin, end), 0
    if laid.padded:
        lengths = laid.lengths[first:last]
        padding = end - begin - int(lengths.sum())
    bounds = (_bounds(lengths, np.diff(starts)) if padding else starts - begin).astype(np.int32)
    return Batch(laid.input_ids[span], laid.targets[span], laid.loss_weights[span], laid.position_ids[span], bounds, padding)


def _bounds(lengths: npt.NDArray[np.int64], padded: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where documents begin and end. The padding behind a document is one of its own; that of no length is none."""
    pieces = np.stack([lengths, padded - lengths], axis=1).ravel()
    return _offsets(pieces[pieces > 0])


def _shift(tokens: Tokens) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Inputs, targets and the targets' weights. The last position of a document predicts nothing."""
    last = tokens.offsets[1:] - 1
    input_ids = tokens.input_ids.astype(np.int64)
    targets = np.empty_like(input_ids)
    targets[:-1] = input_ids[1:]
    targets[last] = 0
    loss_weights = np.empty(len(input_ids), dtype=np.float32)
    loss_weights[:-1] = tokens.loss_weights[1:]
    loss_weights[last] = 0.0
    return input_ids, targets, loss_weights


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
