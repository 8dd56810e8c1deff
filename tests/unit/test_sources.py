"""Which files a source has, and what becomes of rows that are not as they should be."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arrowtune.data.config import SourceConfig
from arrowtune.data.sources import head, parse, resolve_source
from arrowtune.errors import SourceError
from support.prepare import pieces, read_rows, write_lines


def names(path: Path | str) -> list[str]:
    return [file.name for file in resolve_source(SourceConfig(path=str(path)), "source").files]


def records(path: Path, size: int = 1 << 20) -> list[Any]:
    return [raw.record for raw in read_rows(path, size)]


def faults(path: Path, size: int = 1 << 20) -> list[tuple[int, int, str]]:
    return [(raw.row, raw.line, raw.fault) for raw in read_rows(path, size) if raw.record is None]


def write_table(path: Path, rows: Sequence[dict[str, Any]], **options: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path, **options)
    return path


def test_a_folder_is_read_sorted_without_hidden_and_metadata_files(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a/z.jsonl", "a/b.jsonl", ".hidden.jsonl", "_tmp/x.jsonl", "README.md", "_SUCCESS", "state.json"):
        write_lines(tmp_path / name, [{}])
    assert names(tmp_path) == ["a/b.jsonl", "a/z.jsonl", "b.jsonl"]


def test_a_glob_and_a_file_whose_name_looks_like_one(tmp_path: Path) -> None:
    for name in ("a1.jsonl", "a2.jsonl", "b[1].jsonl"):
        write_lines(tmp_path / name, [{}])
    assert names(tmp_path / "a*.jsonl") == ["a1.jsonl", "a2.jsonl"]
    assert names(tmp_path / "b[1].jsonl") == ["b[1].jsonl"]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("chats.jsonll", "did you mean chats.jsonl"),
        ("nothing/*.jsonl", "no file matches"),
        ("empty", "empty"),
        ("notes.txt", "no file that can be read"),
        ("mixed", "several kinds"),
        ("s3://bucket/chats.jsonl", "s3 address"),
    ],
)
def test_what_cannot_be_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "chats.jsonl", [{}])
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    write_lines(tmp_path / "mixed" / "a.jsonl", [{}])
    write_table(tmp_path / "mixed" / "b.parquet", [{"a": 1}])
    with pytest.raises(SourceError) as caught:
        names(path)
    assert says in caught.value.render()


def test_B31_a_field_that_is_null_for_long_and_then_a_string(tmp_path: Path) -> None:
    rows = [{"a": 1, "meta": None}] * 2000 + [{"a": 1, "meta": "s"}]
    assert records(write_lines(tmp_path / "late.jsonl", rows), 1000) == rows
    assert records(write_lines(tmp_path / "early.jsonl", rows[::-1]), 1000) == rows[::-1]
    table = write_table(tmp_path / "late.parquet", rows, row_group_size=100)
    assert records(table) == [{"a": 1}] * 2000 + [{"a": 1, "meta": "s"}]


def test_B32_rows_whose_fields_differ_stay_as_they_are(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "a", "name": "n"}]},
        {"messages": [{"content": "b", "role": "user"}], "extra": {"x": [1, {"y": 2.5}]}},
        {"messages": [{"role": "user", "content": None}]},
    ]
    found = records(write_lines(tmp_path / "rows.jsonl", rows))
    assert found == rows
    assert [list(row["messages"][0]) for row in found] == [["role", "content", "name"], ["content", "role"], ["role", "content"]]
    assert "name" not in records(write_table(tmp_path / "rows.parquet", rows[:2]))[1]["messages"][0]


def test_B33_bad_lines_are_told_by_file_and_physical_line(tmp_path: Path) -> None:
    lines = ['{"a": 1}', "", '{"a":"2"', "[1, 2]", "7", '"text"', "null", '{"a": 3}', '{"a": "secr']
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert [raw.record for raw in read_rows(path) if raw.record] == [{"a": 1}, {"a": 3}]
    found = faults(path)
    assert [line for _, line, _ in found] == [3, 4, 5, 6, 7, 9]
    assert [row for row, _, _ in found] == [1, 2, 3, 4, 5, 7]
    assert "not valid JSON" in found[0][2]
    assert "a list, not an object" in found[1][2]
    assert "ends inside this row" in found[-1][2]
    assert not any("secr" in fault for _, _, fault in found)


def test_B33_a_top_level_array_in_a_jsonl_file_is_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps([{"a": 1}, {"a": 2}], indent=1))
    assert records(path) == [{"a": 1}, {"a": 2}]


def test_json_lines_in_a_json_file_are_read_as_such(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert records(path) == [{"a": 1}, {"a": 2}]
    path.write_text('{\n "a": 1\n}\n')
    with pytest.raises(SourceError, match="neither a JSON array nor JSON lines"):
        records(path)


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": 2', '[{"a": 1}, ', '[{"a": 1}', '[{"a": 1}] [', "["])
def test_an_array_whose_end_is_wrong_has_one_bad_row_more(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    found = records(path)
    assert found == [{"a": 1}] * (text != "[") + [None]
    assert faults(path)[0][0] == len(found) - 1


def test_a_bad_row_of_an_array_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"a": 1}, {"a": }, 5, {"a": NaN}, {"a": 100000000000000000000000}]')
    found = read_rows(path)
    assert [raw.row for raw in found if raw.record is None] == [1, 2]
    assert found[4].record == {"a": 10**23}
    assert found[3].record is not None
    assert found[3].record["a"] != found[3].record["a"]


def test_B35_lone_surrogates_do_not_cost_the_file(tmp_path: Path) -> None:
    lines = ['{"a": "x\\ud83d"}', '{"a": "\\ud83d\\ude00"}', '{"a": "n\\u0000\\u200b"}', '{"a": "good"}']
    found = records(write_lines(tmp_path / "rows.jsonl", lines))
    assert found[1:] == [{"a": "😀"}, {"a": "n\0\u200b"}, {"a": "good"}]
    assert found[0] == {"a": "x\ud83d"}


def test_bytes_that_are_not_utf8_are_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": "\xff"}\n{"a": 1}\n')
    assert faults(path) == [(0, 1, "not UTF-8 at byte 7")]
    path.write_bytes('{"a": 1}\n'.encode("utf-16"))
    with pytest.raises(SourceError, match="UTF-16"):
        read_rows(path)


def test_B39_large_text_in_a_table_is_cut_by_bytes(tmp_path: Path) -> None:
    rows = [{"text": chr(97 + k) * 300_000} for k in range(20)]
    path = write_table(tmp_path / "rows.parquet", rows, row_group_size=20)
    found = list(pieces(path, 1 << 20))
    assert len(found) > 3
    assert all(piece.data is not None and len(piece.data) < 3 << 20 for piece in found)
    assert records(path, 1 << 20) == rows


def test_B43_nulls_in_lists_stay(tmp_path: Path) -> None:
    rows = [{"a": [None, [0]]}, {"a": [None, [None]]}] * 5
    for path in (write_lines(tmp_path / "rows.jsonl", rows), write_table(tmp_path / "rows.parquet", rows, row_group_size=1)):
        assert records(path, 1) == rows


def test_a_damaged_compressed_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 10_000)[:-20])
    with pytest.raises(SourceError, match=r"rows\.jsonl\.gz is damaged or cut off"):
        read_rows(path)


def test_a_file_that_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(SourceError, match="Parquet"):
        read_rows(path)


def test_a_file_that_changes_under_the_worker(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"a": 1}])
    [piece] = pieces(path, 100)
    write_lines(path, [{"a": 2}])
    with pytest.raises(SourceError, match="changed"):
        piece.load()


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_the_head_of_a_piece_is_its_first_rows(tmp_path: Path, name: str) -> None:
    rows = [{"a": f"{k}, ["} for k in range(9)]
    path = tmp_path / name
    if name.endswith("parquet"):
        write_table(path, rows)
    else:
        path.write_text(json.dumps(rows) if name.endswith("json") else "\n\n".join(map(json.dumps, rows)))
    [piece] = pieces(path, 1 << 20)
    for count in range(1, 10):
        first = head(piece, count)
        assert [raw.record for raw in parse(first, first.load())] == rows[:count]
