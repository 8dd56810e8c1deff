"""JSON lines: a row per line; blank lines, CRLF and a missing last line end are fine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from arrowtune.data.sources.decode import decode, lines_that_may_round
from arrowtune.data.sources.piece import MAX_ROW_BYTES, Chunk, RawRow, Rows
from arrowtune.errors import SourceError

_BLANK = np.zeros(256, bool)
_BLANK[list(b" \t\r\n\v\f")] = True
_NEWLINE = ord("\n")


def cut_lines(blocks: Iterable[bytes], size: int, path: str) -> Iterator[Chunk]:
    """Cut a stream after the first line that ends at or after `size` bytes; where depends on nothing else.

    Raises:
        SourceError: A line that never ends.
    """
    held: list[bytes] = []
    have = 0
    for block in blocks:
        rest = block
        while (end := rest.find(b"\n", max(0, size - have - 1))) >= 0:
            held.append(rest[: end + 1])
            yield _chunk(b"".join(held))
            held, have, rest = [], 0, rest[end + 1 :]
        held.append(rest)
        have += len(rest)
        if have > MAX_ROW_BYTES:
            raise SourceError(f"{path} holds a line of more than {MAX_ROW_BYTES >> 30} GiB", hint="is this JSON lines?")
    if have:
        yield _chunk(b"".join(held))


def first_rows(data: bytes, count: int) -> bytes:
    """The bytes of the first `count` rows."""
    _, stops = _rows(data)
    return data[: int(stops[count - 1])] if count < len(stops) else data


def parse_lines(data: bytes, last: bool) -> Rows:
    """The rows of a piece.

    Args:
        data: Whole lines.
        last: The file ends here, so that a faulty line without an end was cut off.
    """
    row, long_numbers = 0, lines_that_may_round(data)
    lines = data.split(b"\n")
    for line, text in enumerate(lines):
        text = text.strip()
        if not text:
            continue
        record, fault = decode(text, careful=line in long_numbers)
        if record is None and last and line == len(lines) - 1:
            fault = f"the file ends inside this row ({fault})"
        yield RawRow(row, line, record, fault)
        row += 1


def _chunk(data: bytes) -> Chunk:
    return Chunk(data, len(_rows(data)[0]), data.count(b"\n"))


def _rows(data: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Starts and ends of the lines that are not blank, without a Python loop over the others."""
    values = np.frombuffer(data, np.uint8)
    stops = np.flatnonzero(values == _NEWLINE) + 1
    if len(values) and (not len(stops) or stops[-1] != len(values)):
        stops = np.append(stops, len(values))
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1]]) if len(stops) else stops
    suspects = np.flatnonzero(_BLANK[values[starts]]) if len(starts) else starts
    blank = [index for index in suspects.tolist() if not data[starts[index] : stops[index]].strip()]
    return np.delete(starts, blank), np.delete(stops, blank)
