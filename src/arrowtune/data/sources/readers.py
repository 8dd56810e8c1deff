"""The readers by kind: how a file is cut in the parent, and how a piece is parsed in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from arrowtune.data.sources import array, lines, table
from arrowtune.data.sources.blocks import Blocks
from arrowtune.data.sources.decode import is_json
from arrowtune.data.sources.local import TABLES, Kind, SourceFile
from arrowtune.data.sources.piece import Chunk, Piece, Rows
from arrowtune.errors import SourceError
from arrowtune.fingerprint import digest_bytes, digest_file

_SPACE = b" \t\r\n"


class FileCut:
    """One pass over a file: its pieces in order, then its digest.

    Args:
        file: The file.
        index: Its index among the source's files.
        size: Pieces end with the first row that ends at or after so many bytes.
    """

    def __init__(self, file: SourceFile, index: int, size: int) -> None:
        self._file, self._index, self._size = file, index, size
        self._digest: str | None = None

    def digest(self) -> str:
        """The digest of the file as stored; valid once all pieces were taken."""
        if self._digest is None:
            self._digest = digest_file(self._file.state.path)
        return self._digest

    def __iter__(self) -> Iterator[Piece]:
        """The pieces.

        Raises:
            SourceError: The file cannot be read.
        """
        path = self._file.state.path
        if self._file.kind in TABLES:
            cut = table.cut_parquet if self._file.kind == "parquet" else table.cut_arrow
            if self._file.state.size:
                yield from self._number(self._file.kind, cut(path, self._size), None)
            return
        try:
            blocks = Blocks(self._file)
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error.strerror}") from None
        try:
            yield from self._text(blocks)
        finally:
            blocks.close()
        self._digest = blocks.digest()

    def _text(self, blocks: Blocks) -> Iterator[Piece]:
        stream = iter(blocks)
        first = next(stream, b"")
        kind = _layout(first, self._file)
        whole = chain([first] if first else [], stream)
        cut = array.cut_array if kind == "json" else lines.cut_lines
        yield from self._number(kind, cut(whole, self._size, self._file.state.path), blocks)

    def _number(self, kind: Kind, chunks: Iterator[Chunk], blocks: Blocks | None) -> Iterator[Piece]:
        """Give every chunk its address. A chunk is held back by one, to know the last."""
        row, line, position, taken = 0, 1, 0, 0
        held: Piece | None = None
        inline = blocks is None or self._file.compression is not None
        for number, chunk in enumerate(chunks):
            if held is not None:
                yield held
            position += chunk.skipped + (blocks.mark if blocks and not number else 0)
            consumed = blocks.consumed if blocks else position + len(chunk.data)
            stored = (consumed - taken) if inline else chunk.skipped + len(chunk.data)
            held = Piece(
                path=self._file.state.path,
                name=self._file.name,
                file=self._index,
                kind=kind,
                start=position,
                stop=position + len(chunk.data),
                data=chunk.data if inline else None,
                digest=digest_bytes(chunk.data),
                row=row,
                line=line if kind == "jsonl" else None,
                rows=chunk.rows,
                last=False,
                fault=chunk.fault,
                size=stored,
            )
            row, line, position, taken = row + chunk.rows, line + chunk.lines, position + len(chunk.data), consumed
        if held is not None:
            yield replace(held, last=True)


def head(piece: Piece, count: int) -> Piece:
    """The piece cut down to its first `count` rows."""
    reader = table.first_rows if piece.is_table else {"jsonl": lines.first_rows, "json": array.first_rows}[piece.kind]
    data = reader(piece.load(), count)
    stop = piece.start + len(data)
    inline = data if piece.data is not None else None
    return replace(piece, data=inline, digest=digest_bytes(data), stop=stop, rows=count, last=False, fault="")


def parse(piece: Piece, data: bytes) -> Rows:
    """The rows of a piece, numbered from 0 within it."""
    if piece.kind == "jsonl":
        return lines.parse_lines(data, piece.last)
    if piece.kind == "json":
        return array.parse_array(data, piece.last)
    return table.parse_table(data)


def _layout(first: bytes, file: SourceFile) -> Kind:
    """What the text holds, whatever its suffix says: `.json` files are often JSON lines, and the other way round.

    Raises:
        SourceError: It is neither.
    """
    start = first.lstrip(_SPACE)
    if not start:
        return "jsonl"
    if start.startswith(b"["):
        line, _, after = start.partition(b"\n")
        is_row = file.kind == "jsonl" and line.rstrip(_SPACE).endswith(b"]") and after.strip(_SPACE) and is_json(line)
        return "jsonl" if is_row else "json"
    if file.kind == "json" and not is_json(start.partition(b"\n")[0]) and b"\n" in start:
        raise SourceError(
            f"{file.state.path} holds neither a JSON array nor JSON lines",
            hint="write the rows as [ {...}, {...} ] or one object per line",
        )
    return "jsonl"
