"""Parquet: row slices as Arrow IPC, read in the parent so that a large row group never is whole in memory.

A Parquet reader gives every struct all fields that any row has. Which of them a row had and which are null cannot be told
apart afterwards, and a template must not see fields that were never written: nulls inside structs are left out. Nulls in
lists stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from arrowtune.data.sources.piece import Chunk, RawRow, Rows
from arrowtune.errors import SourceError

_MAGIC = b"ARROW1"
_ROWS_AT_ONCE = 64


def cut_parquet(path: str, size: int) -> Iterator[Chunk]:
    """Slices of the rows of a Parquet file, about `size` bytes each, in order.

    Raises:
        SourceError: The file is no Parquet file, or it is damaged.
    """
    import pyarrow.parquet as pq  # It loads a file system of every cloud, which other sources do without.

    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for group in range(file.num_row_groups):
                about = file.metadata.row_group(group)
                each = max(1, about.total_byte_size // max(1, about.num_rows))
                for batch in file.iter_batches(max(1, size // each), row_groups=[group], use_threads=False):
                    yield Chunk(_to_ipc(batch), batch.num_rows)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise SourceError(f"{path} cannot be read as Parquet: {reason}", hint="fetch or write the file again") from None


def cut_arrow(path: str, size: int) -> Iterator[Chunk]:
    """Slices of the rows of an Arrow IPC file or stream, about `size` bytes each, in order; the file is mapped.

    Raises:
        SourceError: The file is neither, or it is damaged.
    """
    try:
        with pa.memory_map(path) as mapped:
            for batch in arrow_batches(mapped):
                each = max(1, batch.nbytes // max(1, batch.num_rows))
                rows = max(1, size // each)
                for start in range(0, batch.num_rows, rows):
                    part = batch.slice(start, rows)
                    yield Chunk(_to_ipc(part), part.num_rows)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise SourceError(f"{path} cannot be read as Arrow IPC: {reason}", hint="fetch or write the file again") from None


def arrow_batches(mapped: Any) -> Iterator[pa.RecordBatch]:
    """The record batches of an Arrow IPC file or stream."""
    if mapped.size() >= len(_MAGIC) and mapped.read_at(len(_MAGIC), 0) == _MAGIC:
        with pa.ipc.open_file(mapped) as file:
            yield from (file.get_batch(number) for number in range(file.num_record_batches))
    else:
        with pa.ipc.open_stream(mapped) as stream:
            yield from stream


def columns_of(path: str) -> list[str]:
    """The names of the columns.

    Raises:
        SourceError: The file is no Parquet file.
    """
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None


def first_rows(data: bytes, count: int) -> bytes:
    """An IPC stream of the first `count` rows."""
    return _to_ipc(read_table(data).slice(0, count))


def read_table(data: bytes) -> pa.RecordBatch:
    """A slice, as columns."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def parse_table(data: bytes) -> Rows:
    """The rows of a slice, fields that are null left out. Made some at a time, for those who look at the first only."""
    batch = read_table(data)
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        part = batch.slice(start, _ROWS_AT_ONCE)
        for row, record in enumerate(part.to_pylist(maps_as_pydicts="lossy"), start):
            yield RawRow(row, 0, _without_nulls(record))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _to_ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
