"""A JSON array of objects, read as a stream: only the commas between its rows are looked for.

A comma separates rows when it is outside of strings and exactly one bracket is open. Which quotes open or close a string
follows from the parity of the unescaped quotes before them, which vectorises; a state of three values carries over
from block to block, so the array is never whole in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt
import orjson

from arrowtune.data.sources.decode import as_record, decode, may_round
from arrowtune.data.sources.piece import MAX_ROW_BYTES, Chunk, RawRow, Rows
from arrowtune.errors import SourceError

_PLAIN, _QUOTE, _BACKSLASH, _OPEN, _CLOSE, _COMMA = range(6)
_CLASSES = np.zeros(256, np.uint8)
for _class, _letters in ((_QUOTE, b'"'), (_BACKSLASH, b"\\"), (_OPEN, b"[{"), (_CLOSE, b"]}"), (_COMMA, b",")):
    _CLASSES[list(_letters)] = _class
_DELTAS = np.array([0, 0, 0, 1, -1, 0], np.int64)
_SPACE = b" \t\r\n"


class Structure:
    """Finds the commas between rows, block by block.

    Args:
        depth: Brackets open before the first byte.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._in_string = False
        self._escaped = False

    @property
    def between_rows(self) -> bool:
        """Whether the stream stands outside of every row."""
        return self.depth == 1 and not self._in_string

    def feed(self, block: bytes) -> tuple[npt.NDArray[np.int64], int]:
        """Look at the next block.

        Returns:
            The places of commas between rows, and the place of the bracket that closes the array, or -1. What follows
            that bracket is not looked at.
        """
        codes = _CLASSES[np.frombuffer(block, np.uint8)]
        places = np.flatnonzero(codes)
        codes = codes[places]
        quotes = codes == _QUOTE
        quotes &= ~self._after_backslash(places, codes, len(block))
        inside = (np.cumsum(quotes) + self._in_string) & 1
        outside = (inside == 0) & (codes >= _OPEN)
        self._in_string = bool(inside[-1]) if len(inside) else self._in_string
        places, codes = places[outside], codes[outside]
        depths = self.depth + np.cumsum(_DELTAS[codes])
        self.depth = int(depths[-1]) if len(depths) else self.depth
        closed = np.flatnonzero(depths == 0)
        if len(closed):
            self.depth = 0
            end = int(closed[0])
            return places[:end][(codes[:end] == _COMMA) & (depths[:end] == 1)], int(places[end])
        return places[(codes == _COMMA) & (depths == 1)], -1

    def _after_backslash(self, places: npt.NDArray[np.int64], codes: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.bool_]:
        """Which places follow an odd run of backslashes."""
        slashes = places[codes == _BACKSLASH]
        if self._escaped:
            # The first byte belongs to the escape that the last block began.
            slashes = slashes[slashes != 0]
        breaks = np.flatnonzero(np.diff(slashes) != 1)
        starts = slashes[np.concatenate([np.zeros(1, np.int64), breaks + 1])] if len(slashes) else slashes
        ends = slashes[np.concatenate([breaks, [len(slashes) - 1]])] if len(slashes) else slashes
        escaped = ends[(ends - starts) % 2 == 0] + 1
        found = np.isin(places, escaped, assume_unique=True)
        if self._escaped:
            found |= places == 0
        if size:
            self._escaped = bool(len(escaped) and escaped[-1] == size)
        return found


def cut_array(blocks: Iterable[bytes], size: int, path: str) -> Iterator[Chunk]:
    """Cut the rows of a JSON array after the first comma between rows at or after `size` bytes.

    The array's own brackets belong to no chunk; every chunk but the last ends with a comma.

    Raises:
        SourceError: A row that never ends.
    """
    structure = Structure(1)
    held: list[bytes] = []
    have = rows = 0
    skipped, blocks = _after_bracket(blocks)
    rest = closed = trailing = False
    for block in blocks:
        if closed:
            trailing = trailing or bool(block.strip(_SPACE))
            continue
        commas, end = structure.feed(block)
        if end >= 0:
            closed, trailing, block = True, bool(block[end + 1 :].strip(_SPACE)), block[:end]
        start = done = 0
        for index in _cuts(commas, size - have, size):
            stop = int(commas[index]) + 1
            held.append(block[start:stop])
            yield Chunk(b"".join(held), rows + index + 1 - done, skipped=skipped)
            held, have, rows, skipped, start, done = [], 0, 0, 0, stop, index + 1
        rows += len(commas) - done
        begun = bool(block[int(commas[-1]) + 1 if len(commas) else 0 :].strip(_SPACE))
        rest = begun or (rest and not len(commas))
        held.append(block[start:])
        have += len(block) - start
        if have > MAX_ROW_BYTES:
            raise SourceError(f"{path} holds a row of more than {MAX_ROW_BYTES >> 30} GiB", hint="is its JSON valid?")
    fault = ""
    if closed:
        fault = "there is text after the end of the array" if trailing else ""
    elif not rest or structure.between_rows:
        fault = "the file ends without the array's closing bracket"
    yield Chunk(b"".join(held), rows + rest, skipped=skipped, fault=fault)


def _after_bracket(blocks: Iterable[bytes]) -> tuple[int, Iterator[bytes]]:
    """How many bytes the opening bracket ends after, and the blocks from there on."""
    found = iter(blocks)
    skipped = 0
    for block in found:
        at = block.find(b"[")
        if at >= 0:
            return skipped + at + 1, chain([block[at + 1 :]], found)
        skipped += len(block)
    return skipped, found


def _cuts(commas: npt.NDArray[np.int64], first: int, size: int) -> Iterator[int]:
    """Indices of the commas to cut after: the first one that ends `first` bytes or more, and then `size` bytes each."""
    need = first
    while (index := int(np.searchsorted(commas, need - 1))) < len(commas):
        yield index
        need = int(commas[index]) + 1 + size


def first_rows(data: bytes, count: int) -> bytes:
    """The bytes of the first `count` rows."""
    commas, _ = Structure(1).feed(data)
    return data[: int(commas[count - 1]) + 1] if count <= len(commas) else data


def parse_array(data: bytes, last: bool) -> Rows:
    """The rows of a chunk.

    Args:
        data: Rows with commas between and perhaps after them.
        last: The file ends here, so that a faulty last row was cut off.
    """
    text = data.strip(_SPACE)
    text = text[:-1] if text.endswith(b",") else text
    try:
        if may_round(text):
            raise ValueError
        values = orjson.loads(b"[" + text + b"]")
    except ValueError:
        yield from _one_by_one(text, last)
        return
    for row, value in enumerate(values):
        yield RawRow(row, 0, *as_record(value))


def _one_by_one(text: bytes, last: bool) -> Rows:
    commas, _ = Structure(1).feed(text)
    starts = [0, *(commas + 1).tolist()]
    stops = [*commas.tolist(), len(text)]
    for row, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        record, fault = decode(text[start:stop], careful=True)
        if record is None and last and stop == len(text):
            fault = f"the file ends inside this row ({fault})"
        yield RawRow(row, 0, record, fault)
