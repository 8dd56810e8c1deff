"""Whatever the data holds, the terminal obeys none of it and nothing is lost from view."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from arrowtune.types import Origin
from arrowtune.view.preview import PreviewedRow, row_text, runs_of
from arrowtune.view.text import table, visible

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60), st.sampled_from([0.5, 1.0])), max_size=5)


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    assert all(unicodedata.category(char) != "Cc" for char in visible(text).replace("\n", "").replace("\t", ""))


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"], exclude_characters="\u00a0"), max_size=50))
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert visible(text) == "".join(char if char.isprintable() else f"<U+{ord(char):04X}>" for char in text)


@given(st.text(), SPANS)
def test_runs_hold_the_whole_text_and_marks_count_the_trained_ones(text: str, spans: list[tuple[int, int, float]]) -> None:
    spans = [(start, end, weight) for start, end, weight in sorted(spans) if start < end]
    runs = runs_of(text, spans)
    assert "".join(part for part, _ in runs) == text
    inside = {at for start, end, _ in spans for at in range(start, min(end, len(text)))}
    assert sum(len(part) for part, weight in runs if weight) == len(inside)
    shown = row_text(PreviewedRow("s", Origin("f", 0), runs, 0, 0), colour=False, full=True).plain
    assert shown.count("⟦") == shown.count("⟧") == sum(weight > 0 for _, weight in runs)


@given(st.lists(st.lists(st.text(st.characters(categories=["L", "N"]), max_size=9), min_size=3, max_size=3), max_size=6))
def test_every_number_column_ends_where_its_head_ends(rows: list[list[str]]) -> None:
    lines = table(("source", "rows", "tokens"), rows).split("\n")
    assert len(lines) == len(rows) + 1
    width = max(len(line) for line in lines)
    assert all(len(line) == width for line, row in zip(lines[1:], rows, strict=True) if row[-1])
