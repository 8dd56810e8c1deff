"""A file cut anywhere gives the rows that `json.loads` of the whole gives, at the same addresses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.data.sources.array import cut_array, parse_array
from arrowtune.data.sources.lines import cut_lines, parse_lines
from arrowtune.data.sources.piece import Chunk
from support.prepare import read_rows

nasty = st.text(st.sampled_from('ab"\\[]{},:\n\t \u00e9\u2028😀'), max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | nasty
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(nasty, inner, max_size=3), max_leaves=8
)
records = st.dictionaries(nasty, values, max_size=3)
layouts = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"indent": 0}])


def blocks(data: bytes, size: int) -> list[bytes]:
    """The bytes in blocks."""
    return [data[start : start + size] for start in range(0, len(data), size)]


def array_rows(chunks: list[Chunk]) -> list[Any]:
    """The rows of chunks, each chunk parsed alone; a fault is None."""
    found: list[Any] = []
    for number, chunk in enumerate(chunks):
        rows = list(parse_array(chunk.data, number == len(chunks) - 1))
        assert [raw.row for raw in rows] == list(range(chunk.rows))
        found += [raw.record for raw in rows] + [None] * bool(chunk.fault)
    return found


@given(st.lists(records, max_size=8), layouts, st.integers(1, 40), st.integers(1, 60), st.sampled_from(["", " ", "\n\n"]))
def test_an_array_cut_anywhere(rows: list[Any], layout: dict[str, Any], block: int, size: int, space: str) -> None:
    text = f"{space}{json.dumps(rows, **layout)}{space}".encode()
    assert array_rows(list(cut_array(blocks(text, block), size, "a"))) == rows


@given(st.lists(records, max_size=8), st.integers(1, 40), st.integers(1, 30))
def test_where_an_array_is_cut_does_not_depend_on_the_blocks(rows: list[Any], size: int, block: int) -> None:
    text = json.dumps(rows).encode()
    assert list(cut_array(blocks(text, block), size, "a")) == list(cut_array([text], size, "a"))


@given(st.lists(records, min_size=1, max_size=6), st.data(), st.integers(1, 40), st.integers(1, 60))
def test_an_array_that_is_cut_off(rows: list[Any], data: st.DataObject, block: int, size: int) -> None:
    text = json.dumps(rows).encode()
    end = data.draw(st.integers(1, len(text) - 1))
    found = array_rows(list(cut_array(blocks(text[:end], block), size, "a")))
    whole = complete(text[:end].decode("utf-8"))
    assert found == [*rows[:whole], None]


def complete(text: str) -> int:
    """How many whole objects an array that is cut off begins with."""
    decoder, position, count = json.JSONDecoder(), 1, 0
    while True:
        try:
            _, position = decoder.raw_decode(text, position)
        except ValueError:
            return count
        position, count = position + 2, count + 1


@given(
    st.lists(st.tuples(records, st.sampled_from(["\n", "\r\n", "\n\n", "\n  \n", "\n\t\r\n"])), max_size=8),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 60),
)
def test_lines_cut_anywhere(rows: list[tuple[Any, str]], last_end: bool, block: int, size: int) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + end for row, end in rows)
    text = text if last_end else text.rstrip()
    expected = [(line, json.loads(line_text)) for line, line_text in enumerate(text.split("\n")) if line_text.strip()]
    chunks = list(cut_lines(blocks(text.encode(), block), size, "a"))
    found, line = [], 0
    for number, chunk in enumerate(chunks):
        parsed = list(parse_lines(chunk.data, number == len(chunks) - 1))
        assert [raw.row for raw in parsed] == list(range(chunk.rows))
        found += [(line + raw.line, raw.record) for raw in parsed]
        line += chunk.lines
    assert found == expected
    assert b"".join(chunk.data for chunk in chunks) == text.encode()


@given(st.lists(records, min_size=1, max_size=6), st.data())
def test_lines_that_are_cut_off(rows: list[Any], data: st.DataObject) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    end = data.draw(st.integers(0, len(text)))
    whole = text[:end].count(b"\n")
    rest = text[:end].rpartition(b"\n")[2]
    [chunk] = list(cut_lines([text[:end]], 1 << 20, "a")) or [Chunk(b"", 0)]
    found = [raw.record for raw in parse_lines(chunk.data, True)]
    torn = [rows[whole] if rest == json.dumps(rows[whole]).encode() else None] if rest else []
    assert found == [*rows[:whole], *torn]


@given(st.integers(-(10**25), 10**25), st.integers(0, 700))
def test_integers_of_any_size_stay_integers(number: int, before: int) -> None:
    row = {"a": "x" * before, "b": number, "c": "y"}
    text = json.dumps(row).encode()
    for found in (list(parse_lines(text, True)), list(parse_array(text, True))):
        assert [raw.record for raw in found] == [row]
        assert found[0].record is not None
        assert type(found[0].record["b"]) is int


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("size", [1, 50, 1000, 1 << 20])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, suffix: str, mark: bytes, size: int) -> None:
    rows = [{"text": f'{k} "quoted" \\ [,] {{}} \u00e9😀'} for k in range(40)]
    text = json.dumps(rows, indent=1) if ".json." in f"{suffix}." else "\r\n".join(map(json.dumps, rows))
    data = mark + text.encode()
    packed = {"gz": gzip.compress, "zst": zstandard.compress}.get(suffix.rsplit(".", 1)[1], bytes)(data)
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(packed)
    found = read_rows(path, size)
    assert [raw.record for raw in found] == rows
    assert [raw.row for raw in found] == list(range(40))
