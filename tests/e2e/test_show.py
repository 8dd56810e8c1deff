"""`show`: what will be trained and what will not, from the first rows, without making a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli import arrowtune

RUN = "model: {path: tiny}\ndata: {train: chats.jsonl, max_length: 256, cache_dir: cache}\n"


def chat(user: str, *answers: str) -> str:
    messages = [{"role": "user", "content": user}, *({"role": "assistant", "content": answer} for answer in answers)]
    return json.dumps({"messages": messages})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(RUN)
    rows = [
        chat("2+2? \x1b[2J", "four ⟧"),
        chat("no answer"),
        chat("3+3?", "six"),
        '{"messages": ["broken"',
        chat("never", "shown"),
    ]
    (tmp_path / "chats.jsonl").write_text("".join(f"{row}\n" for row in rows))
    return tmp_path


def test_rows_are_shown_with_marks_where_there_is_no_terminal(folder: Path) -> None:
    result = arrowtune("show", "run.yaml", "--rows", "2", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "2+2? ␛[2J" in result.stdout
    assert "⟦four <U+27E7><|im_end|>⟧" in result.stdout
    assert "chats: 1 row skipped among the first 2\nchats.jsonl:2  no_assistant_turn: " in result.stdout
    assert "3+3" not in result.stdout
    assert not (folder / "cache" / "stores").exists()


def test_skipped_rows_are_shown_with_their_reasons(folder: Path) -> None:
    result = arrowtune("show", "run.yaml", "--skipped", cwd=folder)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "chats: 2 rows skipped among the first 5"
    assert [line.split(":")[:2] for line in lines[1:]] == [
        ["chats.jsonl", "2  no_assistant_turn"],
        ["chats.jsonl", "4  bad_row"],
    ]


def test_what_max_length_cuts_off_is_not_shown_as_trained(folder: Path) -> None:
    whole = "one two three four five six seven eight nine ten eleven twelve"
    (folder / "chats.jsonl").write_text(chat("count", whole) + "\n")
    result = arrowtune("show", "run.yaml", "data.max_length=16", cwd=folder)
    assert "(chats: 16 tokens, " in result.stdout
    assert "more characters are beyond data.max_length" in result.stdout
    assert "twelve" not in result.stdout


def test_colour_where_there_is_a_terminal(folder: Path) -> None:
    result = arrowtune("show", "run.yaml", "--rows", "1", cwd=folder, FORCE_COLOR="1", COLORTERM="", TERM="xterm")
    assert "\x1b[1;32mfour" in result.stdout
    assert "⟦" not in result.stdout
