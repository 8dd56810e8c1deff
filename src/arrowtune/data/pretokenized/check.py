"""Pretokenized rows as flat arrays, every value checked: whole batches at a time, and the first fault is named by its row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowtune.data.formats.base import bad
from arrowtune.data.pretokenized.columns import IGNORED, Columns
from arrowtune.data.store_batch import to_numpy
from arrowtune.types import Origin

Array = npt.NDArray[Any]
Place = Callable[[int], Origin]
"""The address of a row of a batch."""


@dataclass(frozen=True, slots=True)
class Lists:
    """A column of lists: list k is `values[offsets[k] : offsets[k + 1]]`.

    Attributes:
        values: Numbers of any width, a view of the column where it holds such.
        offsets: int64[n + 1].
    """

    values: Array
    offsets: npt.NDArray[np.int64]

    def row_of(self, position: int) -> int:
        """The list that a value belongs to."""
        return int(np.searchsorted(self.offsets, position, "right")) - 1


@dataclass(frozen=True, slots=True)
class Checked:
    """Rows without fault.

    Attributes:
        ids: The token ids.
        mask: 0, 1 or weights, list by list as long as the ids; None where everything is trained.
    """

    ids: Lists
    mask: Lists | None


def check(batch: pa.RecordBatch, columns: Columns, vocabulary: int, place: Place) -> Checked:
    """Check every value of a batch.

    Args:
        batch: The rows.
        columns: Which columns they are in.
        vocabulary: Ids are below this.
        place: For errors.

    Raises:
        FormatError: A value is null, of another type, out of range, or a list is of another length than the ids.
    """
    ids = _integers(batch, columns.ids, place)
    _check_ids(ids, columns.ids, vocabulary, place)
    if columns.attention:
        _check_attention(_numbers(batch, columns.attention, place), ids, columns.attention, place)
    if columns.kind == "all":
        return Checked(ids, None)
    if columns.kind == "weights":
        mask = _numbers(batch, columns.mask, place)
        _same_lengths(mask, ids, columns.mask, place)
        _fault(
            mask, ~(np.isfinite(mask.values) & (mask.values >= 0)), columns.mask, "is not a finite number of at least 0", place
        )
    elif columns.kind == "mask":
        mask = _integers(batch, columns.mask, place)
        _same_lengths(mask, ids, columns.mask, place)
        if len(mask.values) and not 0 <= mask.values.min() <= mask.values.max() <= 1:
            _fault(mask, (mask.values != 0) & (mask.values != 1), columns.mask, "is neither 0 nor 1", place)
    else:
        mask = _of_labels(_integers(batch, columns.mask, place), ids, columns.mask, place)
    return Checked(ids, mask)


def _check_ids(ids: Lists, name: str, vocabulary: int, place: Place) -> None:
    if len(ids.values) and not 0 <= int(ids.values.min()) <= int(ids.values.max()) < vocabulary:
        wrong = (ids.values < 0) | (ids.values >= vocabulary)
        _fault(ids, wrong, name, f"is outside of the vocabulary of {vocabulary} ids", place)


def _check_attention(mask: Lists, ids: Lists, name: str, place: Place) -> None:
    _same_lengths(mask, ids, name, place)
    _fault(mask, mask.values != 1, name, "is not 1: the row is padded; write it without its padding", place)


def _of_labels(labels: Lists, ids: Lists, name: str, place: Place) -> Lists:
    _same_lengths(labels, ids, name, place)
    trained = labels.values != IGNORED
    other = trained & (labels.values != ids.values)
    _fault(labels, other, name, "is neither -100 nor the id in its place (labels are not shifted)", place)
    return Lists(trained.astype(np.uint8), labels.offsets)


def _same_lengths(mask: Lists, ids: Lists, name: str, place: Place) -> None:
    if np.array_equal(mask.offsets, ids.offsets):
        return
    has, wants = np.diff(mask.offsets), np.diff(ids.offsets)
    row = int(np.argmax(has != wants))
    raise bad(place(row), name, f"has {has[row]} values for {wants[row]} ids", "write one value for every id, context included")


def _fault(lists: Lists, wrong: npt.NDArray[np.bool_], name: str, reason: str, place: Place) -> None:
    if not wrong.any():
        return
    position = int(np.argmax(wrong))
    row = lists.row_of(position)
    within = position - int(lists.offsets[row])
    raise bad(place(row), f"{name}[{within}]", f"= {lists.values[position].item()} {reason}")


def _integers(batch: pa.RecordBatch, name: str, place: Place) -> Lists:
    return _numbers(batch, name, place, integers=True)


def _numbers(batch: pa.RecordBatch, name: str, place: Place, *, integers: bool = False) -> Lists:
    """The lists of a column, without a copy where its values are numbers that are not bits.

    Raises:
        FormatError: It is not of lists of numbers, or holds a null.
    """
    column = batch.column(name)
    kind = column.type
    if pa.types.is_null(kind):
        _null(column, name, place)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise bad(place(0), name, f"must be a list of numbers, not {kind}")
    if column.null_count:
        _null(column, name, place)
    offsets, values = _laid_out(column)
    if values.null_count:
        row = int(np.searchsorted(offsets, int(np.argmax(np.asarray(values.is_null()))), "right")) - 1
        raise bad(place(row), name, "holds a null")
    return Lists(_flat(values, name, place, integers), offsets)


def _laid_out(column: Any) -> tuple[npt.NDArray[np.int64], Any]:
    """Offsets from 0, and the values that they cover."""
    if pa.types.is_fixed_size_list(column.type):
        return np.arange(len(column) + 1, dtype=np.int64) * column.type.list_size, column.flatten()
    offsets = to_numpy(column.offsets).astype(np.int64)
    return offsets - offsets[0], column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _flat(values: Any, name: str, place: Place, integers: bool) -> Array:
    kind = values.type
    if pa.types.is_null(kind):  # Of empty lists nothing more is known.
        return np.zeros(0, np.int32)
    if pa.types.is_boolean(kind):
        return to_numpy(values.cast(pa.uint8()))
    if not (pa.types.is_integer(kind) or (not integers and pa.types.is_floating(kind))):
        raise bad(place(0), name, f"must hold {'integers' if integers else 'numbers'}, not {kind}")
    return to_numpy(values)


def _null(column: Any, name: str, place: Place) -> NoReturn:
    raise bad(place(int(np.argmax(np.asarray(column.is_null())))), name, "is null")
