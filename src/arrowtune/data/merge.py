"""Joining finished units, in source order, into the files of a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from arrowtune.data.store_batch import to_arrow, to_numpy
from arrowtune.data.store_format import disk_error, schema
from arrowtune.data.store_writer import Writer
from arrowtune.data.units import Unit


@dataclass(frozen=True, slots=True)
class Base:
    """Where a unit's pieces begin: what turns a row's place within its piece into its address.

    Attributes:
        key: Of the unit.
        files, rows, lines: One entry per piece: the file's index, its first row, its first line (0 where rows have none).
    """

    key: str
    files: tuple[int, ...]
    rows: tuple[int, ...]
    lines: tuple[int, ...]

    @classmethod
    def of(cls, unit: Unit) -> Base:
        """The base of a unit; small, so that all of a source fit into memory."""
        pieces = unit.pieces
        return cls(
            unit.key,
            tuple(piece.file for piece in pieces),
            tuple(piece.row for piece in pieces),
            tuple(piece.line or 0 for piece in pieces),
        )

    def of_pieces(self) -> Iterator[tuple[int, int, int | None]]:
        """File, first row and first line of every piece, as `Tally.add` takes them."""
        for file, row, line in zip(self.files, self.rows, self.lines, strict=True):
            yield file, row, line or None


def merge(bases: Iterable[Base], folder: Path, writer: Writer, *, fractional: bool) -> None:
    """Append the examples of finished units to a store.

    Args:
        bases: The units, in source order.
        folder: Holds their files.
        writer: Of the store.
        fractional: Whether the store's weights are floats.

    Raises:
        StoreError: The disk refuses; `FolderGone` where a unit is not there any more.
    """
    kind = schema(fractional)
    for base in bases:
        with _opened(folder / f"{base.key}.arrow", writer) as file, pa.ipc.open_file(file) as reader:
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                if batch.num_rows:
                    writer.append_batch(_rebased(batch, base, kind))


def _opened(path: Path, writer: Writer) -> pa.MemoryMappedFile:
    try:
        return pa.memory_map(str(path))
    except OSError as error:
        raise disk_error(error, writer.path.parent.parent) from None


def _rebased(batch: pa.RecordBatch, base: Base, kind: pa.Schema) -> pa.RecordBatch:
    piece = to_numpy(batch["file"])
    files = np.array(base.files, np.int32)[piece]
    rows = to_numpy(batch["row"]) + np.array(base.rows, np.int64)[piece]
    first = np.array(base.lines, np.int64)[piece]
    lines = np.where(first > 0, to_numpy(batch["line"]) + first, 0)
    weights = batch["loss_weights"]
    if weights.type != kind.field("loss_weights").type:
        weights = weights.cast(kind.field("loss_weights").type)
    columns = [batch["input_ids"], weights, *(to_arrow(column) for column in (files, rows, lines))]
    return pa.RecordBatch.from_arrays(columns, schema=kind)
