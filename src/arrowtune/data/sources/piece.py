"""A piece: a run of whole rows of one file, cut by bytes, small enough for one worker's lap."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from arrowtune.data.sources.blocks import changed
from arrowtune.data.sources.local import TABLES, Kind
from arrowtune.errors import SourceError
from arrowtune.fingerprint import digest_bytes
from arrowtune.types import Record

PIECE_BYTES = 4 << 20
"""Pieces end with the first row that ends at or after so many bytes."""

MAX_ROW_BYTES = 1 << 30
"""A row beyond this is a file that is not what its name says, or a decompression bomb."""


class Chunk(NamedTuple):
    """What a cutter yields: the bytes of whole rows.

    Attributes:
        data: The bytes, decompressed; for tables an Arrow IPC stream.
        rows: How many rows they hold, the `fault` not counted.
        lines: How many line ends they hold; 0 where rows have no lines.
        skipped: Bytes between the chunk before and this one that belong to neither.
        fault: What is wrong with the file right after these rows, or "".
    """

    data: bytes
    rows: int
    lines: int = 0
    skipped: int = 0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of whole rows, as a worker is given it.

    Attributes:
        path: Where the file is.
        name: How the source calls it.
        file: Its index among the source's files.
        kind: How the rows are laid out.
        start, stop: The byte range in the file; meaningless where `data` is there.
        data: The bytes themselves where they cannot be read by range (compressed files and tables).
        digest: Of the bytes.
        row: 0-based row of the first row within the file.
        line: 1-based physical line of the first byte, or None.
        rows: How many rows it holds.
        last: Nothing of the file follows.
        fault: One more row that is none, and why.
        size: Bytes of the file as stored that the piece stands for.
    """

    path: str
    name: str
    file: int
    kind: Kind
    start: int
    stop: int
    data: bytes | None
    digest: str
    row: int
    line: int | None
    rows: int
    last: bool
    fault: str
    size: int

    @property
    def is_table(self) -> bool:
        """Whether the bytes are an Arrow IPC stream."""
        return self.kind in TABLES

    def load(self) -> bytes:
        """The bytes.

        Raises:
            SourceError: The file is no longer what was scanned.
        """
        if self.data is not None:
            return self.data
        try:
            with open(self.path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), self.stop - self.start, self.start)
                while len(data) < self.stop - self.start and (
                    more := os.pread(file.fileno(), self.stop - self.start - len(data), self.start + len(data))
                ):
                    data += more
        except OSError as error:
            raise SourceError(f"{self.path} cannot be read: {error.strerror}") from None
        if digest_bytes(data) != self.digest:
            raise changed(self.path)
        return data


class RawRow(NamedTuple):
    """A row as it was read.

    Attributes:
        row, line: Its address within the piece: both 0 for the first row.
        record: The row, or None.
        fault: Why there is no record, or "".
    """

    row: int
    line: int
    record: Record | None
    fault: str = ""


Rows = Iterator[RawRow]
