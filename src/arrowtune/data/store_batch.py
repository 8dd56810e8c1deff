"""Examples as Arrow record batches, and what is measured of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowtune.data.store_format import BATCH_BYTES
from arrowtune.protocols import Tokens


def to_arrow(values: npt.NDArray[Any]) -> pa.Array:
    """Numbers as an Arrow array, without a copy. `pa.array` would load pandas first, where it is installed."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """Numbers without nulls as a view of the array's memory. Its own method of this name would load pandas first."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    return np.frombuffer(array.buffers()[1] or b"", dtype)[array.offset : array.offset + len(array)]


class Places:
    """Where examples come from, in columns.

    Args:
        file: int32[n], index into the manifest's sources.
        row: int64[n], row within the file.
        line: int64[n], physical line, 0 where rows have none.
    """

    def __init__(self, file: npt.NDArray[np.int32], row: npt.NDArray[np.int64], line: npt.NDArray[np.int64]) -> None:
        self.file, self.row, self.line = file, row, line

    @classmethod
    def unknown(cls, count: int) -> Places:
        """Examples made in memory."""
        return cls(np.full(count, -1, np.int32), np.full(count, -1, np.int64), np.zeros(count, np.int64))

    def __getitem__(self, part: slice) -> Places:
        return Places(self.file[part], self.row[part], self.line[part])


def make_batch(tokens: Tokens, places: Places, kind: pa.Schema) -> pa.RecordBatch:
    """Lay examples out as one record batch, weights in the dtype of the schema.

    Raises:
        ValueError: An example is empty, or a weight does not fit the dtype.
    """
    if len(tokens.offsets) and (np.diff(tokens.offsets) < 1).any():
        raise ValueError("a store holds no empty examples")
    weights: npt.NDArray[Any] = tokens.loss_weights
    if kind.field("loss_weights").type.value_type == pa.uint8():
        weights = tokens.loss_weights.astype(np.uint8)
        if not np.array_equal(weights, tokens.loss_weights):
            raise ValueError("fractional loss weights need a Writer with fractional=True")
    offsets = to_arrow(tokens.offsets.astype(np.int32))
    columns = [
        pa.ListArray.from_arrays(offsets, to_arrow(tokens.input_ids.astype(np.int32, copy=False)), type=kind.field(0).type),
        pa.ListArray.from_arrays(offsets, to_arrow(weights), type=kind.field(1).type),
        *(to_arrow(values) for values in (places.file, places.row, places.line)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=kind)


def measure(batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Lengths, trained tokens and loss weight sums of the examples; the first position of each never counts."""
    column = batch.column("loss_weights")
    offsets = to_numpy(column.offsets).astype(np.int64)
    weights = to_numpy(column.values)
    starts = offsets[:-1]
    trained = np.add.reduceat(weights > 0, starts, dtype=np.int64) - (weights[starts] > 0)
    counted = weights.astype(np.float64)
    counted[starts] = 0.0
    return np.diff(offsets).astype(np.int32), trained.astype(np.int32), np.add.reduceat(counted, starts)


def parts(offsets: npt.NDArray[Any], most: int = BATCH_BYTES) -> list[slice]:
    """Runs of examples whose record batches stay below `most` bytes, unless a single example does not."""
    tokens = most // 8
    parts, start = [], 0
    while start < len(offsets) - 1:
        stop = max(start + 1, int(np.searchsorted(offsets, int(offsets[start]) + tokens, "right")) - 1)
        parts.append(slice(start, stop))
        start = stop
    return parts


def cut(batch: pa.RecordBatch, most: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """A record batch of a store's schema as one or several below `most` bytes; nothing where it is empty."""
    offsets = to_numpy(batch.column("input_ids").offsets)
    alone = offsets[0] == 0 and offsets[-1] == len(batch.column("input_ids").values)  # Not a slice of a longer one.
    for part in parts(offsets, most):
        if alone and part == slice(0, batch.num_rows):
            yield batch
            return
        lists = []
        for name in ("input_ids", "loss_weights"):
            places = to_numpy(batch.column(name).offsets)[part.start : part.stop + 1]
            values = batch.column(name).values.slice(places[0], places[-1] - places[0])
            lists.append(pa.ListArray.from_arrays(to_arrow(places - places[0]), values, type=batch.schema.field(name).type))
        rest = [column.slice(part.start, part.stop - part.start) for column in batch.columns[len(lists) :]]
        yield pa.RecordBatch.from_arrays([*lists, *rest], schema=batch.schema)
