"""What prepare tells while it works."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from arrowtune.data.progress import Bars, Silent
from support.prepare import chat, chats, prepare, write_lines


class Counts(Silent):
    """Adds up what it is told."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.size = 0

    def begin(self, source: str, size: int) -> None:
        self.size = size

    def advance(self, source: str, size: int, rows: int, tokens: int, skipped: Mapping[str, int]) -> None:
        self.total.update(size=size, rows=rows, tokens=tokens)
        self.skipped.update(skipped)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.json"])
def test_the_parts_add_up_to_the_whole(tmp_path: Path, name: str) -> None:
    rows = [*chats(40), {"messages": [{"role": "user", "content": "x"}]}, chat("a", "b")]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    if name.endswith("gz"):
        path = tmp_path / name
        path.write_bytes(gzip.compress((tmp_path / "rows.jsonl").read_bytes()))
    elif name.endswith("json"):
        path = tmp_path / name
        path.write_text(json.dumps(rows))
    counts = Counts()
    prepared = prepare(path, tmp_path / "cache", progress=counts)
    assert counts.total["rows"] == prepared.rows_read
    assert counts.total["tokens"] == prepared.tokens
    assert dict(counts.skipped) == prepared.skipped == {"no_assistant_turn": 1}
    # The brackets around an array belong to no piece.
    assert 0 <= counts.size - counts.total["size"] <= 2
    assert counts.size == path.stat().st_size


def test_bars_say_notes_where_there_is_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "rows.jsonl", chats(4))
    with Bars() as bars:
        prepare(path, tmp_path / "cache", progress=bars)
        bars.note("one [sentence] as it is :smile: " + "long " * 40)
    assert capsys.readouterr().err == "one [sentence] as it is :smile: " + "long " * 40 + "\n"
