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


def test_long_work_without_a_terminal_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with Bars(clock=lambda: now[0]) as bars:
        bars.begin("chats", 1000)
        for second in range(1, 81):
            now[0] = float(second)
            bars.advance("chats", 10, 5, 2000, {"bad_row": 1} if second % 2 else {"bad_row": 2, "empty": 1})
        bars.end("chats")
    assert capsys.readouterr().err.splitlines() == [
        "chats: 30%, 5 rows/s, 2,000 tokens/s, 60 skipped (45 bad_row, 15 empty), 0:01:10 left",
        "chats: 60%, 5 rows/s, 2,000 tokens/s, 120 skipped (90 bad_row, 30 empty), 0:00:40 left",
    ]
