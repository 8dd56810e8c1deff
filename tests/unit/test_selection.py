"""A sample of a source, and a source several times: views that prepare nothing anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.data.config import SourceConfig
from arrowtune.errors import ConfigError
from arrowtune.plan import Plan
from arrowtune.plan.config import BatchConfig
from arrowtune.plan.selection import select
from support.plan import ArrayExamples
from support.prepare import chats, write_lines
from support.run import config, lines, train


def examples(count: int) -> ArrayExamples:
    return ArrayExamples(
        [[k, k + 1, k + 2][: 2 + k % 2] for k in range(count)], [[0.0, 1.0, 1.0][: 2 + k % 2] for k in range(count)]
    )


@given(count=st.integers(1, 60), sample=st.none() | st.integers(1, 80) | st.floats(0.01, 0.99), repeat=st.integers(1, 4))
def test_a_view_is_the_same_part_so_many_times(count: int, sample: int | float | None, repeat: int) -> None:
    whole = examples(count)
    view = select(whole, sample, repeat)
    want = count if sample is None else min(count, sample) if isinstance(sample, int) else max(1, round(count * sample))
    assert len(view) == want * repeat
    found = view.fetch(np.arange(len(view)))
    firsts = found.input_ids[found.offsets[:-1]]
    assert len(set(firsts.tolist())) == want
    assert firsts.tolist() == sorted(set(firsts.tolist())) * repeat
    assert view.lengths.tolist() == np.diff(found.offsets).tolist() == whole.lengths[firsts].tolist()
    assert view.trained_tokens.tolist() == whole.trained_tokens[firsts].tolist()
    assert view.loss_weight_sums.tolist() == whole.loss_weight_sums[firsts].tolist()
    again = select(examples(count), sample, repeat)
    assert np.array_equal(again.fetch(np.arange(len(view))).input_ids, found.input_ids)


def test_nothing_asked_for_is_nothing_done() -> None:
    whole = examples(5)
    assert select(whole, None, 1) is whole


def test_a_plan_of_another_sample_is_another_plan() -> None:
    def plan(sample: int | None) -> Plan:
        return Plan.build([select(examples(40), sample, 1)], weights=None, batch=BatchConfig(examples=4), capacity=64, seed=1)

    assert plan(20).fingerprint == plan(20).fingerprint
    assert plan(20).differences(plan(21).fingerprint)
    assert plan(None).differences(plan(20).fingerprint)


def test_a_run_sees_the_sample_and_the_repeats(tmp_path: Path) -> None:
    one, two = (write_lines(tmp_path / f"{name}.jsonl", chats(count)) for name, count in (("one", 40), ("two", 10)))
    data = {
        "train": [{"path": str(one), "sample": 0.25}, {"path": str(two), "repeat": 3}],
        "eval": [{"path": str(one), "name": "held", "sample": 5}],
        "max_length": 256,
        "workers": 1,
    }
    train(config(tmp_path, data=data, batch={"examples": 10}))
    steps = [line["per_source"] for line in lines(tmp_path, "train")]
    assert {name: sum(step.get(name, 0) for step in steps) for name in ("one", "two")} == {"one": 10, "two": 30}
    [held] = lines(tmp_path, "eval")
    assert 0 < held["trained_tokens"] < 200


@pytest.mark.parametrize("bad", [{"sample": 0}, {"sample": 1.5}, {"sample": "x"}, {"repeat": 0}, {"repeat": 1.5}])
def test_what_is_no_part_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises((ConfigError, ValueError)):
        SourceConfig(path="a.jsonl", **bad)


@pytest.mark.parametrize("text", ["train[:10]", "train[10%:20%]", "[30:]", "train[5:8]", "[:100%]", "train[90%:]", "train"])
def test_slices_are_those_of_datasets(tmp_path: Path, text: str) -> None:
    from datasets import load_dataset

    from arrowtune.data.slices import Split

    path = write_lines(tmp_path / "a.jsonl", [{"k": k} for k in range(47)])
    split = Split.parse(text)
    theirs = load_dataset(
        "json", data_files=str(path), split=text if split.name else f"train{text}", cache_dir=str(tmp_path / "hf")
    )
    start, stop = split.bounds(47)
    assert list(range(start, stop)) == list(theirs["k"])


@pytest.mark.parametrize(
    "text", ["", "train[", "train[5:5]", "train[20%:10%]", "train[:101%]", "a b", "train[-5:]", "train[3:50%]"]
)
def test_what_is_no_split_is_refused(text: str) -> None:
    with pytest.raises((ConfigError, ValueError)):
        SourceConfig(path="a.jsonl", split=text)


@pytest.mark.parametrize("form", ["jsonl", "arrow"])
def test_slices_share_a_store_and_count_raw_rows(tmp_path: Path, form: str) -> None:
    from arrowtune.data.store import Store
    from arrowtune.ingest import given
    from support.prepare import prepare

    rows = [{"input_ids": [k, 1], "loss_mask": [0, int(k % 3 > 0)]} for k in range(30)]
    if form == "jsonl":
        write_lines(tmp_path / "data" / "a.jsonl", rows[:11])
        write_lines(tmp_path / "data" / "b.jsonl", rows[11:])
        path = tmp_path / "data"
    else:
        import pyarrow as pa

        table = pa.table({name: pa.array([row[name] for row in rows], pa.list_(pa.int32())) for name in rows[0]})
        path = tmp_path / "a.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    store = Store(prepare(path, tmp_path / "cache").path)
    for text, expected in (("[:10]", range(10)), ("[50%:]", range(15, 30)), ("train[10:13]", range(10, 13))):
        part = given(store, SourceConfig(path=str(path), split=text))
        found = part.fetch(np.arange(len(part)))
        assert found.input_ids[found.offsets[:-1]].tolist() == [k for k in expected if k % 3]
    with pytest.raises(Exception, match=r"no example comes of the rows \[0:1\] of 30"):
        given(store, SourceConfig(path=str(path), split="[0:1]"))
    assert prepare(path, tmp_path / "cache", source={"split": "[:7]"}).reused
