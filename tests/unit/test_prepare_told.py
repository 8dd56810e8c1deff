"""What `prepare` tells of the rows that it used, and what a limit spares."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from arrowtune.data.config import SourceConfig
from arrowtune.data.manifest import manifest_of
from arrowtune.data.report import Tally
from arrowtune.data.sources import resolve_source
from arrowtune.data.store_writer import remove_abandoned
from arrowtune.data.units import Scan, Scanned
from arrowtune.errors import FormatError
from support.prepare import Notes, chat, content, prepare, spec, write_lines


def test_what_happened_to_used_rows_is_one_line_for_each_source(tmp_path: Path) -> None:
    rows = [chat("hi", "a long answer " * 60), chat("<|im_end|>", "fine"), chat("hi", "good")]
    rows.append({"messages": [*rows[2]["messages"], {"role": "user", "content": "and then?"}]})
    notes = Notes()
    path = write_lines(tmp_path / "chats.jsonl", rows)
    prepare(path, tmp_path / "cache", progress=notes, rendering=spec(max_length=64))
    [note] = notes.notes
    assert note == (
        "chats: 1 row cut to max_length, 1 row with messages after the last assistant turn, left out, "
        "1 row with control tokens spelled in their content"
    )
    prepare(path, tmp_path / "cache", progress=notes, rendering=spec(max_length=64))
    assert notes.notes == [note]


def test_rows_that_are_used_as_they_are_need_no_word(tmp_path: Path) -> None:
    notes = Notes()
    prepare(write_lines(tmp_path / "chats.jsonl", [chat("hi", "good")]), tmp_path / "cache", progress=notes)
    assert notes.notes == []


def test_why_the_fast_engine_was_not_used_is_told_and_changes_no_byte(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "chats.jsonl", [chat("hi", "good")])
    known, unknown = spec(), spec()
    unknown = dataclasses.replace(unknown, files=dataclasses.replace(unknown.files, alphabet="other"))
    notes = Notes()
    slow = prepare(path, tmp_path / "slow", rendering=unknown, progress=notes)
    assert [note for note in notes.notes if "the fast token engine was not used: its tokens do not spell" in note] == notes.notes
    assert len(notes.notes) == 1
    assert content(slow.store_path) == content(prepare(path, tmp_path / "fast", rendering=known).store_path)


def test_rows_that_no_format_reads_are_an_error_that_names_their_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows" / "b.jsonl", [{"foo": 1}])
    write_lines(tmp_path / "rows" / "a.jsonl", [])
    with pytest.raises(FormatError, match=r"b\.jsonl have the columns foo, which no format reads"):
        prepare(path.parent, tmp_path / "cache")


def test_a_limit_reads_no_more_of_a_file_than_its_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"a": k} for k in range(100)])
    first = Scan(resolve_source(SourceConfig(path=str(path)), "rows"), 5)
    assert [sum(piece.rows for piece in unit.pieces) for unit in first] == [5]
    with path.open("a") as file:
        file.write('{"a": 100}\n')
    again = Scan(resolve_source(SourceConfig(path=str(path)), "rows"), 5)
    list(again)
    assert [(file.digest, file.rows) for file in first.files] == [(file.digest, file.rows) for file in again.files]


def test_prepare_in_a_thread(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "chats.jsonl", [chat(f"hi {k}", "good " * 300) for k in range(4000)])
    found = []
    thread = threading.Thread(target=lambda: found.append(prepare(path, tmp_path / "thread", workers=2)))
    thread.start()
    thread.join()
    assert content(found[0].store_path) == content(prepare(path, tmp_path / "here").store_path)


def test_what_a_writer_left_without_its_lock_is_removed_once_it_is_old(tmp_path: Path) -> None:
    young, old = tmp_path / ".tmp-young", tmp_path / ".tmp-old"
    for folder in (young, old):
        folder.mkdir()
        (folder / "data-00000.arrow").write_bytes(b"x")
    past = time.time() - 7200
    for path in (old / "data-00000.arrow", old):
        os.utime(path, (past, past))
    assert remove_abandoned(tmp_path) == [old]
    assert young.is_dir()


def test_a_million_skipped_rows_take_no_more_room_than_ten() -> None:
    few, many = Tally(read=[0], kept=[0]), Tally(read=[0], kept=[0])
    for tally, count in ((few, 10), (many, 1_000_000)):
        tracemalloc.start()
        for row in range(count):
            tally.skip(0, row, row + 1, "bad_row", "it says so")
        assert tracemalloc.get_traced_memory()[0] < 20_000
        tracemalloc.stop()
    total = Tally()
    for _ in range(3):
        total.add(many, [(0, 0, 1)])
    assert total.skipped == {"bad_row": 3_000_000}
    manifests = [
        len(json.dumps(manifest_of("", {}, [Scanned("rows.jsonl", "jsonl", 1, "", None)], tally))) for tally in (few, total)
    ]
    assert manifests[1] < manifests[0] + 40


def test_what_is_said_of_a_gigantic_row_is_cut(tmp_path: Path) -> None:
    rows = [chat("a", "b")] * 200 + [{"messages": [{"role": "x" * 1_000_000, "content": {"k" * 1_000_000: 1}}]}]
    prepared = prepare(write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "cache")
    assert sum(prepared.skipped.values()) == 1
    assert (prepared.store_path / "manifest.json").stat().st_size < 10_000
