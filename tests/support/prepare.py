"""Sources of a few rows, and preparing them with the tiny tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from arrowtune.data.config import DataConfig, SourceConfig
from arrowtune.data.lease import USUAL, Pace
from arrowtune.data.prepare import PreparedStore, PrepareJob, prepare_sources
from arrowtune.data.progress import Silent
from arrowtune.data.render import RenderSpec
from arrowtune.data.sources import FileCut, Piece, RawRow, parse, resolve_source
from arrowtune.data.tokenizer import read_tokenizer
from support.assets import TINY


def chat(question: str, answer: str, **fields: Any) -> dict[str, Any]:
    """A row with one question and one answer."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **fields}


def chats(count: int, words: int = 6) -> list[dict[str, Any]]:
    """Rows that all differ, of about `words` words."""
    return [chat(f"what is {k} plus {k}?", " ".join([f"it is {2 * k}", *["and so on"] * (words // 3)])) for k in range(count)]


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    """JSON lines; a string is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_big(path: Path, megabytes: int) -> Path:
    """JSON lines of so many megabytes, every row another one."""
    filler = "the quick brown fox jumps over the lazy dog and runs away " * 60
    with path.open("w", encoding="utf-8") as file:
        row = 0
        while file.tell() < megabytes << 20:
            file.writelines(json.dumps(chat(f"question {row + k}", f"{row + k} {filler}")) + "\n" for k in range(200))
            row += 200
    return path


class Notes(Silent):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.units = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, *_: Any) -> None:
        self.units += 1


def spec(template: str | None = None, **fields: Any) -> RenderSpec:
    """The tiny tokenizer, with another template if one is given."""
    return RenderSpec(read_tokenizer(TINY, template), **fields)


def prepare(
    path: Path | str,
    cache: Path,
    *,
    name: str = "chats",
    role: str = "train",
    workers: int = 1,
    rendering: RenderSpec | None = None,
    private: Path | None = None,
    progress: Silent | None = None,
    source: dict[str, Any] | None = None,
    pace: Pace = USUAL,
    **data: Any,
) -> PreparedStore:
    """Prepare one source."""
    job = PrepareJob(SourceConfig(path=str(path), **(source or {})), name, role)
    [store] = prepare_sources(
        [job],
        rendering or spec(),
        DataConfig(**data),
        cache=cache,
        workers=workers,
        private=private,
        progress=progress,
        pace=pace,
    )
    return store


def pieces(path: Path, size: int) -> Iterator[Piece]:
    """The pieces of a file."""
    source = resolve_source(SourceConfig(path=str(path)), "source")
    for index, file in enumerate(source.files):
        yield from FileCut(file, index, size)


def read_rows(path: Path, size: int = 1 << 20) -> list[RawRow]:
    """The rows of a file with their addresses within it, and its fault as a row of its own."""
    found = []
    for piece in pieces(path, size):
        rows = list(parse(piece, piece.load()))
        assert len(rows) == piece.rows
        found += [raw._replace(row=piece.row + raw.row, line=(piece.line or 0) + raw.line) for raw in rows]
        if piece.fault:
            found.append(RawRow(piece.row + piece.rows, 0, None, piece.fault))
    return found


def content(store: Path) -> dict[str, bytes]:
    """Every file of a store but its history, by name."""
    return {path.name: path.read_bytes() for path in sorted(store.iterdir()) if path.name != "prepare.json"}
