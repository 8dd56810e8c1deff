"""One mapped Arrow file, seen as flat arrays: the place of an example is arithmetic on the mapped offsets.

A store's own files and the files of others that a store is linked to are read alike: lists of any width of number, with
offsets of either width. Nothing is copied, and no file descriptor is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

MAGIC = b"ARROW1"


class NotFlat(Exception):
    """The values do not lie in the file as plain numbers; one clause says why."""


@dataclass(frozen=True, slots=True)
class Column:
    """A list column of a mapped file.

    Attributes:
        values: The file from its first byte, seen as this column's numbers.
        ends: The file from its first byte, seen as this column's offsets.
        value_places, end_places: Per batch, where its values and its offsets begin, in elements.
    """

    values: npt.NDArray[Any]
    ends: npt.NDArray[Any]
    value_places: Ints
    end_places: Ints

    def starts(self, batch: Ints, within: Ints) -> Ints:
        """int64[n]: where in `values` rows begin, given by their batch and their row within it."""
        return np.asarray(self.ends[self.end_places[batch] + within] + self.value_places[batch], np.int64)


class MappedFile:
    """A mapped Arrow IPC file or stream.

    Args:
        path: The file.
        ids, weights: Its columns; without `weights` every token weighs 1.

    Attributes:
        rows: How many it holds.

    Raises:
        OSError: It cannot be read.
        pa.ArrowException: It is no Arrow IPC.
        NotFlat: A column is compressed, packed into bits, null somewhere, or not of lists of numbers.
    """

    def __init__(self, path: Path, ids: str, weights: str) -> None:
        with pa.memory_map(str(path)) as mapped:
            # The buffer keeps the mapping; the descriptor closes here.
            buffer = mapped.read_buffer()
        self.batches: list[pa.RecordBatch] = batches_of(buffer)
        self._firsts = np.cumsum([0, *(batch.num_rows for batch in self.batches)], dtype=np.int64)
        self.rows = int(self._firsts[-1])
        self.ids = _column(self.batches, ids, buffer)
        self.weights = _column(self.batches, weights, buffer) if weights else None

    def starts(self, rows: Ints) -> tuple[Ints, Ints | None]:
        """Where each row begins in the ids' values and in the weights', int64[n] each."""
        batch, within = self._find(rows)
        return self.ids.starts(batch, within), None if self.weights is None else self.weights.starts(batch, within)

    def value(self, column: str, row: int) -> Any:
        """One value of a column that is no list."""
        batch, within = self._find(np.array([row]))
        return self.batches[int(batch[0])][column][int(within[0])].as_py()

    def _find(self, rows: Ints) -> tuple[Ints, Ints]:
        batch = np.searchsorted(self._firsts, rows, "right") - 1
        return batch, rows - self._firsts[batch]


def batches_of(buffer: pa.Buffer) -> list[pa.RecordBatch]:
    """The record batches of an Arrow IPC file or stream, without a copy."""
    if memoryview(buffer)[: len(MAGIC)] == MAGIC:
        file = pa.ipc.open_file(buffer)
        return [file.get_batch(number) for number in range(file.num_record_batches)]
    return list(pa.ipc.open_stream(buffer))


def _column(batches: Sequence[pa.RecordBatch], name: str, buffer: pa.Buffer) -> Column:
    arrays = [batch.column(name) for batch in batches]
    if not arrays:
        return Column(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64))
    kind = arrays[0].type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise NotFlat(f"{name} is not of lists of any length")
    if not (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)):
        raise NotFlat(f"{name} does not hold plain numbers")
    if any(array.null_count or array.values.null_count for array in arrays):
        raise NotFlat(f"{name} holds nulls")
    value = np.dtype(kind.value_type.to_pandas_dtype())
    end = np.dtype(np.int64 if pa.types.is_large_list(kind) else np.int32)
    return Column(
        _whole(buffer, value),
        _whole(buffer, end),
        np.array([_place(array.values, value, buffer, name) for array in arrays], np.int64),
        np.array([_place(array.offsets, end, buffer, name) for array in arrays], np.int64),
    )


def _whole(buffer: pa.Buffer, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(memoryview(buffer)[: buffer.size // dtype.itemsize * dtype.itemsize], dtype)


def _place(array: pa.Array, dtype: np.dtype[Any], buffer: pa.Buffer, name: str) -> int:
    """Where in the file the numbers of an array begin, in elements."""
    data = array.buffers()[1]
    if data is None or not len(array):
        return 0
    start = data.address - buffer.address
    if not 0 <= start < buffer.size:
        raise NotFlat(f"{name} is compressed")
    if start % dtype.itemsize:
        raise NotFlat(f"{name} is not aligned")
    return int(start // dtype.itemsize + array.offset)
