"""Micro-batches against a loop over tokens: nothing is lost, and nothing crosses a document."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.plan.batch import make_batch, make_batches
from arrowtune.plan.order import Refs
from arrowtune.types import Batch
from support.plan import ArrayExamples

documents = st.lists(st.tuples(st.integers(1, 99), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=12)
sources = st.lists(st.lists(documents, min_size=1, max_size=6), min_size=1, max_size=3)


def store_of(rows: list[list[tuple[int, float]]], name: str) -> ArrayExamples:
    return ArrayExamples(
        [[token for token, _ in row] for row in rows], [[weight for _, weight in row] for row in rows], name=name
    )


def plain(row: list[list[tuple[int, float]]], align: int) -> dict[str, list[float]]:
    """A micro-batch token by token."""
    batch: dict[str, list[float]] = {"ids": [], "targets": [], "weights": [], "positions": [], "bounds": [0]}
    for document in row:
        for place, (token, _) in enumerate(document):
            follower = document[place + 1] if place + 1 < len(document) else (0, 0.0)
            batch["ids"].append(token)
            batch["targets"].append(follower[0])
            batch["weights"].append(follower[1])
            batch["positions"].append(place)
        batch["bounds"].append(len(batch["ids"]))
        padding = -len(document) % align
        for name in ("ids", "targets", "weights"):
            batch[name] += [0] * padding
        batch["positions"] += range(padding)
        if padding:
            batch["bounds"].append(len(batch["ids"]))
    return batch


def as_lists(batch: Batch) -> dict[str, list[float]]:
    return {
        "ids": batch.input_ids.tolist(),
        "targets": batch.targets.tolist(),
        "weights": batch.loss_weights.tolist(),
        "positions": batch.position_ids.tolist(),
        "bounds": batch.cu_seqlens.tolist(),
    }


@given(sources=sources, data=st.data(), align=st.sampled_from([1, 2, 4, 8]))
def test_batches_equal_a_loop_over_tokens(sources: list[list[list[tuple[int, float]]]], data: st.DataObject, align: int) -> None:
    stores = [store_of(rows, f"s{index}") for index, rows in enumerate(sources)]
    addresses = [(store, row) for store, rows in enumerate(sources) for row in range(len(rows))]
    drawn = data.draw(st.lists(st.sampled_from(addresses), min_size=1, max_size=10))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(drawn)), max_size=3)))
    rows = np.split(np.array(data.draw(st.permutations(range(len(drawn)))), dtype=np.int64), cuts)
    refs = Refs(np.array([store for store, _ in drawn], np.int32), np.array([row for _, row in drawn], np.int64))
    for row, batch in zip(rows, make_batches(stores, refs, rows, align), strict=True):
        if not len(row):
            assert batch.tokens == 0
            continue
        chosen = [sources[drawn[index][0]][drawn[index][1]] for index in row]
        assert as_lists(batch) == plain(chosen, align)
        assert batch.tokens == sum(map(len, chosen))
        assert len(batch.input_ids) % align == 0


def test_B55_no_target_crosses_documents_when_everything_is_trained() -> None:
    store = ArrayExamples([[1, 2, 3], [7, 8]])
    batch = make_batch([store], Refs(np.zeros(2, np.int32), np.arange(2)), np.arange(2))
    assert batch.input_ids.tolist() == [1, 2, 3, 7, 8]
    assert batch.targets.tolist() == [2, 3, 0, 8, 0]
    # sum(length - 1) targets, and none of them is 3 -> 7.
    assert batch.loss_weights.tolist() == [1, 1, 0, 1, 0]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 3, 5]


def test_dtypes_are_those_of_the_contract() -> None:
    store = ArrayExamples([[1, 2, 3]])
    refs = Refs(np.zeros(1, np.int32), np.zeros(1, np.int64))
    for row, align in ((np.arange(1), 1), (np.arange(1), 8), (np.zeros(0, np.int64), 1)):
        batch = make_batch([store], refs, row, align)
        assert [array.dtype.name for array in (batch.input_ids, batch.targets, batch.position_ids)] == ["int64"] * 3
        assert [batch.loss_weights.dtype.name, batch.cu_seqlens.dtype.name] == ["float32", "int32"]


def test_an_empty_row_is_one_position_that_counts_for_nothing() -> None:
    batch = make_batch([ArrayExamples([[1, 2]])], Refs(np.zeros(0, np.int32), np.zeros(0, np.int64)), np.zeros(0, np.int64))
    assert as_lists(batch) == {"ids": [0], "targets": [0], "weights": [0.0], "positions": [0], "bounds": [0, 1]}
    assert (batch.tokens, batch.padding) == (0, 1)


def test_the_weight_of_a_first_token_never_counts() -> None:
    store = ArrayExamples([[1], [2, 3]], [[1.0], [1.0, 0.0]])
    batch = make_batch([store], Refs(np.zeros(2, np.int32), np.arange(2)), np.arange(2))
    assert batch.loss_weights.tolist() == [0, 0, 0]
