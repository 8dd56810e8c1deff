"""The first rows of a source, and what is expected of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrowtune.data.config import SourceConfig
from arrowtune.data.prepare import PrepareJob
from arrowtune.data.sample import estimate_source, sample_source
from arrowtune.data.store import Store
from support.prepare import chats, prepare, spec, write_lines

BARE = {"messages": [{"role": "user", "content": "hi"}]}


def job(path: Path, **source: Any) -> PrepareJob:
    return PrepareJob(SourceConfig(path=str(path), **source), "chats", "train")


def test_the_first_rows_over_all_files_with_their_addresses(tmp_path: Path) -> None:
    write_lines(tmp_path / "data" / "a.jsonl", chats(4))
    write_lines(tmp_path / "data" / "b.jsonl", ["nonsense", *chats(4), BARE])
    sample = sample_source(job(tmp_path / "data"), spec(), 7)
    assert sample.rows_read == 7
    assert [str(item.origin) for item in sample.items] == [f"a.jsonl:{line}" for line in (1, 2, 3, 4)] + [
        "b.jsonl:2",
        "b.jsonl:3",
    ]
    assert [(str(skip.origin), skip.reason) for skip in sample.skips] == [("b.jsonl:1", "bad_row")]
    assert 0.5 < sample.share < 1


def test_a_source_that_is_read_whole_is_exact(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [*chats(30), *[BARE] * 12])
    estimate = estimate_source(job(path), spec())
    store = Store(prepare(path, tmp_path / "cache").path)
    assert estimate.exact
    assert (estimate.rows_read, dict(estimate.skipped)) == (42, {"no_assistant_turn": 12})
    for name in ("lengths", "trained_tokens", "loss_weight_sums"):
        assert np.array_equal(getattr(estimate, name), getattr(store, name)), name
    assert np.array_equal(estimate.fetch(np.array([3, 0])).input_ids, store.fetch(np.array([3, 0])).input_ids)


def test_a_part_is_scaled_by_its_bytes(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [*chats(100, words=30), BARE] * 20)
    estimate = estimate_source(job(path), spec(), rows=202)
    assert not estimate.exact
    assert estimate.rows_read == pytest.approx(2020, rel=0.02)
    assert len(estimate) == pytest.approx(2000, rel=0.02)
    assert estimate.skipped["no_assistant_turn"] == pytest.approx(20, abs=1)


def test_a_limit_is_the_end(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", chats(50))
    estimate = estimate_source(job(path, limit=20), spec())
    assert estimate.exact
    assert len(estimate) == 20


def test_a_limit_beyond_the_first_rows_bounds_what_is_expected(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [*chats(100, words=30)] * 20)
    estimate = estimate_source(job(path, limit=500), spec(), rows=200)
    assert not estimate.exact
    assert (len(estimate), estimate.rows_read) == (500, 500)
    more = estimate_source(job(path, limit=5000), spec(), rows=200)
    assert more.rows_read == pytest.approx(2000, rel=0.02)
