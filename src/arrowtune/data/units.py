"""Cutting a source into units of work by its bytes, in one pass that also learns its digest.

Where units begin and end depends on the content alone, never on the number of workers, and a unit's key is made of the
content alone, never of its place. So a finished unit is found again by whoever cuts the same content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arrowtune.data.sources import PIECE_BYTES, FileCut, Piece, Source, SourceFile, head
from arrowtune.errors import SourceError
from arrowtune.fingerprint import FileState, Memory, digest_file, digest_json


@dataclass(frozen=True, slots=True)
class Unit:
    """A lap of work: pieces of one or, where files are small, of several files.

    Attributes:
        index: Its place in source order.
        pieces: In source order.
    """

    index: int
    pieces: tuple[Piece, ...]

    @property
    def key(self) -> str:
        """Names the content of the unit."""
        return digest_json([[piece.kind, piece.digest, piece.last, piece.fault] for piece in self.pieces])

    @property
    def size(self) -> int:
        """Bytes of the source, as stored, that the unit stands for."""
        return sum(piece.size for piece in self.pieces)

    def __str__(self) -> str:
        first = self.pieces[0]
        place = f"line {first.line}" if first.line is not None else f"row {first.row}"
        return f"{first.path} from {place}"


@dataclass(frozen=True, slots=True)
class Scanned:
    """What one pass learnt of a file that belongs to the selection.

    Attributes:
        name: As the source calls it.
        kind: What its suffix says.
        size: Bytes as stored.
        digest: Of the file as stored; with a limit, of the rows that were taken.
        rows: Rows that were taken of it, or None where nothing limits them.
    """

    name: str
    kind: str
    size: int
    digest: str
    rows: int | None


class Scan:
    """One pass over a source.

    Args:
        source: The files.
        limit: The most rows to take, in source order.
        memory: Where digests are remembered for the next start.
        size: Bytes of a piece, and the least that a unit holds unless it is the last.

    Attributes:
        files: What was learnt, complete once the units were all taken.
    """

    def __init__(self, source: Source, limit: int | None, memory: Memory | None = None, size: int = PIECE_BYTES) -> None:
        self._source, self._limit, self._memory, self._size = source, limit, memory, size
        self.files: list[Scanned] = []

    def __iter__(self) -> Iterator[Unit]:
        """The units, in source order.

        Raises:
            SourceError: A file cannot be read, or changed while it was read.
        """
        held: list[Piece] = []
        index = 0
        for piece in self._pieces():
            held.append(piece)
            if sum(one.stop - one.start for one in held) >= self._size:
                yield Unit(index, tuple(held))
                held, index = [], index + 1
        if held:
            yield Unit(index, tuple(held))

    def _pieces(self) -> Iterator[Piece]:
        left = self._limit
        for number, file in enumerate(self._source.files):
            if left == 0:
                return
            settled, question = file.state.settled(), _question(left)
            cut = FileCut(file, number, self._size)
            digests: list[str] = []
            rows = 0
            for piece in _limited(cut, left):
                digests.append(piece.digest)
                rows += piece.rows
                yield piece
            check_unchanged(file)
            if left is None:
                found = Scanned(file.name, file.kind, file.state.size, cut.digest(), None)
            else:
                found = Scanned(file.name, file.kind, file.state.size, digest_json(digests), rows)
                left -= rows
            self.files.append(found)
            if settled and self._memory is not None:
                self._memory.learn(file.state, question, [found.digest, found.rows])


def recall(source: Source, limit: int | None, memory: Memory) -> list[Scanned] | None:
    """What a scan would learn, from what an earlier one did: stats files, reads none. None where a file is new."""
    known: list[Scanned] = []
    left = limit
    for file in source.files:
        if left == 0:
            break
        fact = memory.recall(file.state, _question(left))
        if fact is None:
            return None
        digest, rows = fact
        known.append(Scanned(file.name, file.kind, file.state.size, digest, rows))
        left = None if left is None else left - rows
    return known


def digest_only(source: Source, limit: int | None, memory: Memory) -> list[Scanned]:
    """What a scan would learn, reading the files and preparing nothing.

    Raises:
        SourceError: A file cannot be read.
    """
    if limit is not None:
        scan = Scan(source, limit, memory)
        for _ in scan:
            pass
        return scan.files
    known: list[Scanned] = []
    for file in source.files:
        fact = memory.recall(file.state, _question(None))
        if fact is None:
            settled = file.state.settled()
            fact = [_digest(file), None]
            check_unchanged(file)
            if settled:
                memory.learn(file.state, _question(None), fact)
        known.append(Scanned(file.name, file.kind, file.state.size, fact[0], fact[1]))
    return known


def check_unchanged(file: SourceFile) -> None:
    """Make sure that a file is still what it was when the source was resolved.

    Raises:
        SourceError: It is not.
    """
    try:
        same = FileState.of(file.state.path) == file.state
    except OSError:
        same = False
    if not same:
        raise SourceError(f"{file.state.path} changed while it was read", hint="run again when nothing writes to it")


def _digest(file: SourceFile) -> str:
    try:
        return digest_file(file.state.path)
    except OSError as error:
        raise SourceError(f"{file.state.path} cannot be read: {error.strerror}") from None


def _limited(pieces: FileCut, left: int | None) -> Iterator[Piece]:
    """The pieces until `left` rows were taken; a piece that holds more is cut down."""
    for piece in pieces:
        if left is None:
            yield piece
            continue
        if piece.rows >= left:
            yield piece if piece.rows == left and not piece.fault else head(piece, left)
            return
        left -= piece.rows
        yield piece


def _question(left: int | None) -> str:
    """What the memory is asked: the rows that are taken decide the digest."""
    return "digest" if left is None else f"digest of {left} rows"
