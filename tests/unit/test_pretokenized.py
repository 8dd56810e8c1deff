"""Rows that are ids already: every form that is taken gives the same examples, every other one is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.data.store import Store
from arrowtune.errors import ArrowtuneError, FormatError, RenderError
from support.prepare import prepare, spec

ROWS = [([5, 6, 7, 8], [0, 0, 1, 1]), ([9, 10], [0, 1]), ([11, 12, 13], [1, 1, 0])]


def examples(path: Path) -> list[tuple[list[int], list[float]]]:
    store = Store(path)
    return [(store[k].input_ids.tolist(), store[k].loss_weights.tolist()) for k in range(len(store))]


EXPECTED = [([5, 6, 7, 8], [0, 0, 1, 1]), ([9, 10], [0, 1]), ([11, 12, 13], [0, 1, 0])]
"""The first token of an example is predicted by nothing."""


def lines(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def records(**names: str) -> list[dict[str, Any]]:
    ids, mask = names.get("ids", "input_ids"), names.get("mask", "loss_mask")
    return [{ids: row, mask: trained} for row, trained in ROWS]


def table(ids: pa.DataType, mask: pa.DataType, **more: pa.Array) -> pa.Table:
    columns = {"input_ids": pa.array([row for row, _ in ROWS], ids), "loss_mask": pa.array([mask_ for _, mask_ in ROWS], mask)}
    return pa.table({**columns, **more})


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


def test_json_lines_and_arrays(tmp_path: Path) -> None:
    assert examples(prepare(lines(tmp_path / "a.jsonl", records()), tmp_path / "cache").store_path) == EXPECTED
    (tmp_path / "a.json").write_text(json.dumps(records()))
    assert examples(prepare(tmp_path / "a.json", tmp_path / "cache").store_path) == EXPECTED


@pytest.mark.parametrize("make", [pa.list_, pa.large_list], ids=["list", "large_list"])
@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_B38_lists_of_every_width_of_integer(
    tmp_path: Path, make: Callable[[pa.DataType], pa.DataType], kind: pa.DataType
) -> None:
    pq.write_table(table(make(kind), make(kind)), tmp_path / "a.parquet")
    assert examples(prepare(tmp_path / "a.parquet", tmp_path / "cache").store_path) == EXPECTED


def test_B38_lists_of_one_size_booleans_and_slices(tmp_path: Path) -> None:
    ids = pa.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], pa.list_(pa.int64(), 3))
    mask = pa.array([[False, True, False], [True, True, True], [False, False, True]], pa.list_(pa.bool_()))
    pq.write_table(pa.table({"input_ids": ids, "loss_mask": mask}).slice(1), tmp_path / "a.parquet")
    found = examples(prepare(tmp_path / "a.parquet", tmp_path / "cache").store_path)
    assert found == [([4, 5, 6], [0, 1, 1]), ([7, 8, 9], [0, 0, 1])]


def test_labels_weights_and_no_mask_at_all(tmp_path: Path) -> None:
    labelled = [{"input_ids": ids, "labels": [i if m else -100 for i, m in zip(ids, mask, strict=True)]} for ids, mask in ROWS]
    path = lines(tmp_path / "labels.jsonl", labelled)
    assert examples(prepare(path, tmp_path / "cache", source={"mask": "labels"}).store_path) == EXPECTED
    weighted = [{"input_ids": ids, "loss_weights": [m / 4 for m in mask]} for ids, mask in ROWS]
    found = examples(prepare(lines(tmp_path / "weights.jsonl", weighted), tmp_path / "cache").store_path)
    assert found == [(ids, [weight / 4 for weight in weights]) for ids, weights in EXPECTED]
    bare = lines(tmp_path / "bare.jsonl", [{"input_ids": ids} for ids, _ in ROWS])
    found = examples(prepare(bare, tmp_path / "cache", source={"mask": "all"}).store_path)
    assert found == [(ids, [0] + [1] * (len(ids) - 1)) for ids, _ in ROWS]


def test_other_names_and_an_attention_mask_of_ones(tmp_path: Path) -> None:
    rows = [{**record, "attention_mask": [1] * len(record["tokens"])} for record in records(ids="tokens", mask="assistant_mask")]
    source = {"format": "pretokenized", "columns": {"input_ids": "tokens", "loss_mask": "assistant_mask"}}
    assert examples(prepare(lines(tmp_path / "a.jsonl", rows), tmp_path / "cache", source=source).store_path) == EXPECTED


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a mask that is a window": ({"input_ids": [1, 2, 3], "loss_mask": [1]}, "loss_mask has 1 values for 3 ids"),
    "a mask of other numbers": ({"input_ids": [1, 2], "loss_mask": [0, 2]}, r"loss_mask\[1\] = 2 is neither 0 nor 1"),
    "a mask of fractions": ({"input_ids": [1, 2], "loss_mask": [0, 0.5]}, "loss_mask must hold integers"),
    "a negative id": ({"input_ids": [1, -1], "loss_mask": [0, 1]}, r"input_ids\[1\] = -1 is outside of the vocabulary"),
    "an id beyond the vocabulary": (
        {"input_ids": [2048, 1], "loss_mask": [0, 1]},
        r"input_ids\[0\] = 2048 is outside .* 2048 ids",
    ),
    "a null among the ids": ({"input_ids": [1, None], "loss_mask": [0, 1]}, "input_ids holds a null"),
    "no ids": ({"input_ids": None, "loss_mask": [0, 1]}, "input_ids is null"),
    "text": ({"input_ids": "1 2", "loss_mask": [0, 1]}, "input_ids must be a list"),
    "padding": (
        {"input_ids": [1, 2], "loss_mask": [0, 1], "attention_mask": [1, 0]},
        r"attention_mask\[1\] = 0 is not 1: the row is padded",
    ),
    "counts from the end": ({"input_ids": [1, 2], "loss_mask": [0, 1], "num_actions": 1}, "num_actions counts trained tokens"),
    "labels and a mask": ({"input_ids": [1, 2], "loss_mask": [0, 1], "labels": [1, 2]}, "labels could be the mask"),
    "no mask": ({"input_ids": [1, 2]}, "loss_mask is missing"),
    "images": ({"input_ids": [1, 2], "loss_mask": [0, 1], "pixel_values": [[1.0]]}, "pixel_values holds images"),
    "rows that are packed": ({"input_ids": [1, 2], "loss_mask": [0, 1], "position_ids": [0, 0]}, "packed already"),
    "a weight that is no number": ({"input_ids": [1, 2], "loss_weights": [0, -1.0]}, "is not a finite number"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_B37_B41_what_is_refused_is_named_with_its_row(tmp_path: Path, name: str) -> None:
    record, told = BAD[name]
    good = {**records()[0], **{key: record[key] for key in record.keys() - {"input_ids", "loss_mask"}}}
    if "attention_mask" in record:
        good["attention_mask"] = [1] * 4
    if "loss_weights" in record:
        good = {"input_ids": [1], "loss_weights": [0.0]}
    alone = name in {"no mask", "counts from the end", "labels and a mask", "images", "rows that are packed"}
    path = lines(tmp_path / "a.jsonl", [record] if alone else [good, good, record])
    with pytest.raises(FormatError, match=told) as raised:
        prepare(path, tmp_path / "cache")
    assert f"a.jsonl:{1 if alone else 3}" in str(raised.value)
    columns = {key: [row.get(key) for row in ([record] if alone else [good, good, record])] for key in record}
    try:
        written = pa.table(columns)
    except (pa.ArrowException, TypeError):
        return
    pq.write_table(written, tmp_path / "a.parquet")
    with pytest.raises(FormatError, match=told) as raised:
        prepare(tmp_path / "a.parquet", tmp_path / "other")
    assert "a.parquet" in str(raised.value)
    if not alone and "must" not in told:
        assert "a.parquet row 2" in str(raised.value)


def test_labels_that_are_not_the_ids_are_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"input_ids": [1, 2, 3], "labels": [-100, 3, -100]}])
    with pytest.raises(FormatError, match=r"a.jsonl:1: labels\[1\] = 3 is neither -100 nor the id in its place"):
        prepare(path, tmp_path / "cache", source={"mask": "labels"})


def test_the_policies_of_length_are_those_of_every_source(tmp_path: Path) -> None:
    rows = [{"input_ids": [1] * 10, "loss_mask": [0] * 8 + [1] * 2}, {"input_ids": [2] * 10, "loss_mask": [1] * 10}, *records()]
    path = lines(tmp_path / "a.jsonl", rows)
    cut = prepare(path, tmp_path / "cache", rendering=spec(max_length=8))
    assert cut.skipped == {"truncated_away": 1}
    assert examples(cut.store_path) == [([2] * 8, [0] + [1] * 7), *EXPECTED]
    dropped = prepare(path, tmp_path / "cache", rendering=spec(max_length=8, overlong="drop"))
    assert (dropped.skipped, examples(dropped.store_path)) == ({"overlong": 2}, EXPECTED)
    with pytest.raises(RenderError, match=r"a.jsonl:1 has 10 tokens, more than data.max_length 8"):
        prepare(path, tmp_path / "cache", rendering=spec(max_length=8, overlong="raise"))


def test_rows_without_anything_trained_are_counted(tmp_path: Path) -> None:
    rows = [
        *records(),
        {"input_ids": [], "loss_mask": []},
        {"input_ids": [3], "loss_mask": [1]},
        {"input_ids": [3, 4], "loss_mask": [1, 0]},
    ]
    store = prepare(lines(tmp_path / "a.jsonl", rows), tmp_path / "cache")
    assert store.skipped == {"no_trained_tokens": 3}
    assert examples(store.store_path) == EXPECTED


def test_its_store_does_not_depend_on_the_template(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", records())
    first = prepare(path, tmp_path / "cache")
    other = prepare(path, tmp_path / "cache", rendering=spec("{{ messages }}", train_on="last_assistant_message"))
    assert other.reused
    assert other.identity == first.identity
    assert not prepare(path, tmp_path / "cache", rendering=spec(max_length=3)).reused


Row = tuple[list[int], list[int]]
ANY_ROW = st.integers(0, 12).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 2047), min_size=n, max_size=n), st.lists(st.integers(0, 1), min_size=n, max_size=n)
    )
)


@given(rows=st.lists(ANY_ROW, min_size=1, max_size=30), wide=st.booleans(), signed=st.booleans(), workers=st.sampled_from([1]))
def test_what_goes_in_comes_out(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], wide: bool, signed: bool, workers: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    ids = (pa.large_list if wide else pa.list_)(pa.int32() if signed else pa.uint16())
    written = pa.table(
        {"input_ids": pa.array([r for r, _ in rows], ids), "loss_mask": pa.array([m for _, m in rows], pa.list_(pa.int8()))}
    )
    pq.write_table(written, folder / "a.parquet", row_group_size=7)
    expected = [(r, [0, *m[1:]]) for r, m in rows if any(m[1:])]
    if not expected:
        with pytest.raises(ArrowtuneError, match="no row can be trained on"):
            prepare(folder / "a.parquet", folder / "cache", workers=workers)
        return
    store = Store(prepare(folder / "a.parquet", folder / "cache", workers=workers).path)
    assert [(store[k].input_ids.tolist(), store[k].loss_weights.tolist()) for k in range(len(store))] == expected
    assert store.lengths.tolist() == [len(r) for r, _ in expected]
    assert np.array_equal(store.trained_tokens, [sum(m) for _, m in expected])


def written(path: Path, rows: pa.Table, form: str) -> Path:
    make = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, make(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=2)
    return path


@pytest.mark.parametrize("form", ["file", "stream"])
def test_arrow_files_and_streams(tmp_path: Path, form: str) -> None:
    path = written(tmp_path / "a.arrow", table(pa.list_(pa.int64()), pa.list_(pa.int8())), form)
    assert examples(prepare(path, tmp_path / "cache").store_path) == EXPECTED


def test_saved_data_sets_and_their_splits(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    saved = Dataset.from_list(records())
    saved.save_to_disk(tmp_path / "plain", num_shards=2)
    (tmp_path / "plain" / "cache-1234.arrow").write_bytes(b"not data")
    assert examples(prepare(tmp_path / "plain", tmp_path / "cache").store_path) == EXPECTED
    DatasetDict({"train": saved, "test": saved.select([1])}).save_to_disk(tmp_path / "dict")
    found = prepare(tmp_path / "dict", tmp_path / "cache", source={"split": "test"})
    assert examples(found.store_path) == EXPECTED[1:2]
    with pytest.raises(ArrowtuneError, match=r"no split is named, and .*dict holds train, test"):
        prepare(tmp_path / "dict", tmp_path / "cache")
    with pytest.raises(ArrowtuneError, match=r"there is no split 'dev', and .*dict holds train, test"):
        prepare(tmp_path / "dict", tmp_path / "cache", source={"split": "dev"})


def test_shards_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        (tmp_path / "data").mkdir(exist_ok=True)
        lines(tmp_path / "data" / f"part-{number}.jsonl", [{"input_ids": [number, 1], "loss_mask": [0, 1]}])
    lines(tmp_path / "data" / "_part-3.jsonl", [{"nothing": 1}])
    found = examples(prepare(tmp_path / "data", tmp_path / "cache").store_path)
    assert [ids[0] for ids, _ in found] == [1, 2, 10]


LINKED = [(pa.list_, pa.int32(), pa.uint8()), (pa.large_list, pa.int64(), pa.int64()), (pa.list_, pa.uint16(), pa.int8())]


@pytest.mark.parametrize("form", ["file", "stream"])
@pytest.mark.parametrize(("make", "ids", "mask"), LINKED, ids=["int32", "large", "uint16"])
def test_arrow_files_are_served_where_they_lie(tmp_path: Path, form: str, make: Any, ids: pa.DataType, mask: pa.DataType) -> None:
    path = written(tmp_path / "a.arrow", table(make(ids), make(mask)), form)
    found = prepare(path, tmp_path / "cache")
    store = Store(found.path)
    assert store.linked
    assert not list(found.store_path.glob("*.arrow"))
    assert examples(found.store_path) == EXPECTED
    tokens = store.fetch(np.array([2, 0]))
    assert (tokens.input_ids.dtype, tokens.loss_weights.dtype) == (np.int32, np.float32)
    assert tokens.input_ids.tolist() == [11, 12, 13, 5, 6, 7, 8]
    assert tokens.loss_weights.tolist() == [0, 1, 0, 0, 0, 1, 1]
    assert (store.lengths.tolist(), store.trained_tokens.tolist(), store.loss_weight_sums.tolist()) == (
        [4, 2, 3],
        [2, 1, 1],
        [2, 1, 1],
    )
    assert str(store[1].origin) == "a.arrow row 1"
    store.verify()
    assert prepare(path, tmp_path / "cache").reused
    pq.write_table(table(make(ids), make(mask)), tmp_path / "b.parquet")
    converted = prepare(tmp_path / "b.parquet", tmp_path / "cache")
    assert not Store(converted.path).linked
    assert examples(converted.store_path) == EXPECTED


def test_what_is_served_is_the_mapped_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.arrow", table(pa.list_(pa.int32()), pa.list_(pa.uint8())), "file")
    store = Store(prepare(path, tmp_path / "cache").path)
    store.fetch(np.arange(3))
    mapped = store._file(0).ids.values
    data = np.frombuffer(path.read_bytes(), np.uint8)
    assert np.array_equal(mapped.view(np.uint8), data[: mapped.nbytes])
    assert sum(file.stat().st_size for file in store.path.iterdir()) < 4000


def test_rows_that_are_left_out_or_cut_are_so_without_a_copy(tmp_path: Path) -> None:
    rows = [([1] * 10, [0] * 8 + [1] * 2), ([2] * 10, [1] * 10), ([3, 4], [1, 0]), *ROWS]
    columns = {
        "input_ids": pa.array([r for r, _ in rows], pa.list_(pa.int32())),
        "loss_mask": pa.array([m for _, m in rows], pa.list_(pa.int8())),
    }
    path = written(tmp_path / "a.arrow", pa.table(columns), "file")
    cut = prepare(path, tmp_path / "cache", rendering=spec(max_length=8))
    assert Store(cut.path).linked
    assert cut.skipped == {"truncated_away": 1, "no_trained_tokens": 1}
    assert examples(cut.store_path) == [([2] * 8, [0] + [1] * 7), *EXPECTED]
    assert [str(Store(cut.path)[k].origin) for k in range(4)] == [f"a.arrow row {k}" for k in (1, 3, 4, 5)]
    dropped = prepare(path, tmp_path / "cache", rendering=spec(max_length=8, overlong="drop"))
    assert (dropped.skipped, examples(dropped.store_path)) == ({"overlong": 2, "no_trained_tokens": 1}, EXPECTED)
    with pytest.raises(RenderError, match=r"a.arrow row 0 has 10 tokens, more than data.max_length 8"):
        prepare(path, tmp_path / "cache", rendering=spec(max_length=8, overlong="raise"))


def test_weights_and_no_mask_are_served_too_and_labels_and_bits_converted(tmp_path: Path) -> None:
    ids = pa.array([row for row, _ in ROWS], pa.list_(pa.int32()))
    weights = pa.array([[m / 4 for m in mask] for _, mask in ROWS], pa.list_(pa.float32()))
    labels = pa.array([[i if m else -100 for i, m in zip(row, mask, strict=True)] for row, mask in ROWS], pa.list_(pa.int32()))
    bits = pa.array([[bool(m) for m in mask] for _, mask in ROWS], pa.list_(pa.bool_()))
    fractions = [(row, [m / 4 for m in mask]) for row, mask in EXPECTED]
    everything = [(row, [0] + [1] * (len(row) - 1)) for row, _ in ROWS]
    for number, (columns, source, linked, expected) in enumerate(
        [
            ({"loss_weights": weights}, {}, True, fractions),
            ({}, {"mask": "all"}, True, everything),
            ({"labels": labels}, {"mask": "labels"}, False, EXPECTED),
            ({"loss_mask": bits}, {}, False, EXPECTED),
        ]
    ):
        path = written(tmp_path / f"{number}.arrow", pa.table({"input_ids": ids, **columns}), "file")
        store = Store(prepare(path, tmp_path / "cache", source=source).path)
        assert store.linked is linked
        assert examples(store.path) == expected
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    packed = pa.table({"input_ids": ids, "loss_mask": bits.cast(pa.list_(pa.int8()))})
    with pa.OSFile(str(tmp_path / "z.arrow"), "wb") as sink, pa.ipc.new_file(sink, packed.schema, options=options) as writer:
        writer.write_table(packed)
    store = Store(prepare(tmp_path / "z.arrow", tmp_path / "cache").path)
    assert (store.linked, examples(store.path)) == (False, EXPECTED)


def test_a_file_that_changes_or_goes_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "a.arrow", table(pa.list_(pa.int32()), pa.list_(pa.uint8())), "file")
    first = prepare(path, tmp_path / "cache")
    more = pa.table(
        {"input_ids": pa.array([[7, 8]], pa.list_(pa.int32())), "loss_mask": pa.array([[0, 1]], pa.list_(pa.uint8()))}
    )
    written(path, more, "file")
    with pytest.raises(ArrowtuneError, match=r"a\.arrow, which the store .* is linked to, has changed since"):
        Store(first.path)
    second = prepare(path, tmp_path / "cache")
    assert (second.reused, examples(second.store_path)) == (False, [([7, 8], [0, 1])])
    moved = path.rename(tmp_path / "b.arrow")
    with pytest.raises(ArrowtuneError, match=r"a\.arrow, which the store .* is linked to, is not there any more"):
        Store(second.path)
    third = prepare(moved, tmp_path / "cache")
    assert (third.identity, third.reused) == (second.identity, False)
    assert examples(third.store_path) == [([7, 8], [0, 1])]


@pytest.mark.parametrize(
    "name", ["a mask that is a window", "a mask of other numbers", "an id beyond the vocabulary", "a negative id"]
)
def test_B37_B41_faults_of_files_that_would_be_served_are_named(tmp_path: Path, name: str) -> None:
    record, told = BAD[name]
    good = records()[0]
    columns = {key: pa.array([good[key], good[key], good[key], record[key]], pa.list_(pa.int32())) for key in good}
    path = written(tmp_path / "a.arrow", pa.table(columns), "file")
    with pytest.raises(FormatError, match=rf"a\.arrow row 3: {told}"):
        prepare(path, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("stores/*"))


@given(rows=st.lists(ANY_ROW, min_size=1, max_size=30), size=st.integers(1, 9), limit=st.integers(2, 14), drop=st.booleans())
def test_linked_and_converted_stores_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], size: int, limit: int, drop: bool
) -> None:
    folder = tmp_path_factory.mktemp("same")
    columns = {
        "input_ids": pa.array([r for r, _ in rows], pa.list_(pa.int32())),
        "loss_mask": pa.array([m for _, m in rows], pa.list_(pa.int8())),
    }
    with pa.OSFile(str(folder / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns), max_chunksize=size)
    pq.write_table(pa.table(columns), folder / "a.parquet")
    rendering = spec(max_length=limit, overlong="drop" if drop else "truncate")
    if not any(any(m[1:limit]) and not (drop and len(r) > limit) for r, m in rows):
        return
    linked, converted = (prepare(folder / name, folder / "cache", rendering=rendering) for name in ("a.arrow", "a.parquet"))
    assert examples(linked.store_path) == examples(converted.store_path)
    assert (linked.skipped, linked.tokens, linked.trained_tokens) == (
        converted.skipped,
        converted.tokens,
        converted.trained_tokens,
    )
    one, other = Store(linked.path), Store(converted.path)
    for name in ("lengths", "trained_tokens", "loss_weight_sums"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    order = np.random.default_rng(0).permutation(len(one))
    assert np.array_equal(one.fetch(order).input_ids, other.fetch(order).input_ids)
    assert np.array_equal(one.fetch(order).loss_weights, other.fetch(order).loss_weights)
