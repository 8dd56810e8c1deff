"""The plan: a pure function of the step, for any number of ranks, that agrees with itself in every count."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.data.store import Store
from arrowtune.errors import PlanError
from arrowtune.plan import EvalPlan, Loader, Plan
from arrowtune.plan.config import BatchConfig
from arrowtune.types import Batch
from support.plan import ArrayExamples, SizedExamples
from support.prepare import chat, prepare, write_lines

CAPACITY = 40
sources = st.lists(st.lists(st.integers(1, CAPACITY), min_size=1, max_size=40), min_size=1, max_size=3)
Packing = Literal["best_fit", "first_fit", "none"]
NAMES: tuple[Packing, ...] = ("best_fit", "first_fit", "none")
packings = st.sampled_from(NAMES)


def stores_of(sources: list[list[int]]) -> list[ArrayExamples]:
    return [ArrayExamples.of_lengths(lengths, name=f"s{index}") for index, lengths in enumerate(sources)]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    lengths = draw(sources)
    return Plan.build(
        stores_of(lengths),
        weights=draw(st.none() | st.lists(st.floats(0.1, 1), min_size=len(lengths), max_size=len(lengths))),
        batch=BatchConfig(examples=draw(st.integers(1, 50)), packing=draw(packings)),
        capacity=CAPACITY,
        seed=draw(st.integers(0, 9)),
        epochs=draw(st.sampled_from([0.5, 1.0, 2.0, 2.5])),
        sampler=draw(st.sampled_from(["random", "sequential", "length_grouped"])),
    )


def contents(batch: Batch) -> list[list[int]]:
    """The documents of a micro-batch that hold something."""
    bounds = batch.cu_seqlens.tolist()
    pieces = [batch.input_ids[start:end].tolist() for start, end in pairwise(bounds)]
    return [piece for piece in pieces if any(piece) or len(piece) > 1]


@given(plan=plans())
def test_every_epoch_holds_as_many_examples_as_there_are_and_no_batch_straddles_one(plan: Plan) -> None:
    sizes = [len(plan.refs(step)) for step in range(2 * plan.steps_per_epoch)]
    assert sum(sizes) == 2 * plan.examples_per_epoch
    assert sum(sizes[: plan.steps_per_epoch]) == plan.examples_per_epoch
    assert all(size == plan.batch.examples for size in sizes[: plan.steps_per_epoch - 1])
    if not plan.mixing.weighted:
        first = [ref for step in range(plan.steps_per_epoch) for ref in plan.refs(step)]
        assert sorted(first) == [(index, row) for index, store in enumerate(plan.stores) for row in range(len(store))]


@given(plan=plans(), world=st.integers(1, 64), step=st.integers(0, 30))
def test_the_ranks_together_compute_the_step_for_any_number_of_them(plan: Plan, world: int, step: int) -> None:
    ranks = [plan.rank_rows(step, rank, world) for rank in range(world)]
    assert len({len(rows) for rows in ranks}) == 1
    rows = [row for rank in ranks for row in rank]
    lengths = plan.lengths(plan.refs(step))
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(plan.refs(step))))
    assert all(lengths[row].sum() <= CAPACITY for row in rows)
    assert plan.totals(step, world).padding == sum(not len(row) for row in rows)


@given(plan=plans(), step=st.integers(0, 30), align=st.sampled_from([1, 2, 8]))
def test_the_global_batch_depends_on_neither_packing_capacity_nor_alignment(plan: Plan, step: int, align: int) -> None:
    other = Plan.build(
        plan.stores,
        mixing=plan.mixing,
        sampler=plan.sampler_name,
        batch=BatchConfig(examples=plan.batch.examples, packing="none"),
        capacity=2 * CAPACITY,
        seed=plan.seed,
        steps=3,
        align=align,
    )
    assert list(other.refs(step)) == list(plan.refs(step))
    assert other.totals(step, 3).digest == plan.totals(step, 5).digest
    assert other.fingerprint == plan.fingerprint
    assert other.differences(plan.fingerprint) == []


@given(plan=plans(), data=st.data())
def test_B66_resume_is_a_suffix(plan: Plan, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, plan.steps))
    with Loader(plan, 0, 1) as whole, Loader(plan, 0, 1, start) as rest:
        undisturbed = [(one.step, [batch.input_ids.tolist() for batch in one.batches], one.totals) for one in whole]
        resumed = [(one.step, [batch.input_ids.tolist() for batch in one.batches], one.totals) for one in rest]
    assert len(undisturbed) == plan.steps
    assert resumed == undisturbed[start:]


@given(plan=plans(), step=st.integers(0, 30), world=st.integers(1, 5))
def test_totals_from_lengths_equal_a_count_over_the_tokens(plan: Plan, step: int, world: int) -> None:
    ranks = [plan.rank_step(step, rank, world) for rank in range(world)]
    totals = plan.totals(step, world)
    assert all(rank.totals == totals for rank in ranks)
    batches = [batch for rank in ranks for batch in rank.batches]
    assert totals.examples == len(plan.refs(step))
    assert totals.tokens == sum(batch.tokens for batch in batches)
    assert totals.padding == sum(batch.padding for batch in batches)
    assert totals.trained_tokens == sum(np.count_nonzero(batch.loss_weights) for batch in batches)
    assert totals.loss_weight == sum(float(batch.loss_weights.sum()) for batch in batches)
    assert totals.per_source == {
        store.name: int((plan.refs(step).stores == index).sum()) for index, store in enumerate(plan.stores)
    }


@given(plan=plans(), step=st.integers(0, 30), world=st.integers(1, 5))
def test_batches_hold_the_examples_of_the_step(plan: Plan, step: int, world: int) -> None:
    batches = [batch for rank in range(world) for batch in plan.batches(step, rank, world) if batch.tokens]
    expected = [plan.stores[store].fetch(np.array([row])).input_ids.tolist() for store, row in plan.refs(step)]
    documents = [
        batch.input_ids[start:end].tolist()
        for batch in batches
        for start, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)
    ]
    assert sorted(documents) == sorted(expected)


def test_B75_planned_steps_are_run_steps_and_every_row_is_trained_as_often_as_asked() -> None:
    store = ArrayExamples.of_lengths([5] * 10)
    plan = Plan.build([store], weights=None, batch=BatchConfig(examples=4), capacity=16, seed=1, epochs=2)
    assert plan.steps == 6
    assert [plan.totals(step).examples for step in range(6)] == [4, 4, 2, 4, 4, 2]
    # The remainder is normalised by its own tokens.
    assert [plan.totals(step).loss_weight for step in range(3)] == [16.0, 16.0, 8.0]
    with Loader(plan, 0, 1) as loader:
        assert [planned.step for planned in loader] == [0, 1, 2, 3, 4, 5]
    seen = [row for step in range(6) for row in plan.refs(step).rows.tolist()]
    assert sorted(seen) == sorted([*range(10), *range(10)])


@pytest.mark.parametrize(
    ("epochs", "steps", "expected"),
    [(None, None, 3), (1.0, None, 3), (0.1, None, 1), (1 / 3, None, 1), (1.5, None, 5), (None, 7, 7)],
)
def test_the_length_of_a_run(epochs: float | None, steps: int | None, expected: int) -> None:
    store = ArrayExamples.of_lengths([5] * 10)
    plan = Plan.build([store], weights=None, batch=BatchConfig(examples=4), capacity=16, seed=1, epochs=epochs, steps=steps)
    assert plan.steps == expected


def test_B52_an_example_that_no_row_can_hold_is_refused_by_name() -> None:
    store = ArrayExamples.of_lengths([8, 13, 11], name="chats")
    with pytest.raises(
        PlanError, match="example 1 of 'chats' takes up 13 positions, more than a micro-batch row of 10"
    ) as caught:
        Plan.build([store], weights=None, batch=BatchConfig(), capacity=10, seed=1)
    assert "at least 13" in caught.value.hint
    with pytest.raises(PlanError, match="takes up 16 positions"):
        Plan.build([store], weights=None, batch=BatchConfig(), capacity=15, seed=1, align=8)
    with pytest.raises(PlanError, match="'chats'"):
        EvalPlan(store, 10)
    # With room every example comes through whole: no overflow, no fragments.
    plan = Plan.build([store], weights=None, batch=BatchConfig(examples=3), capacity=13, seed=1)
    assert sorted(len(document) for batch in plan.batches(0, 0, 1) for document in contents(batch)) == [8, 11, 13]


def test_the_differences_of_two_plans_name_what_changed() -> None:
    store, other = ArrayExamples.of_lengths([5] * 10, name="a"), ArrayExamples.of_lengths([5] * 9, name="b")
    first = Plan.build([store], weights=None, batch=BatchConfig(examples=4), capacity=16, seed=1)
    second = Plan.build([store, other], weights=[0.5, 0.5], batch=BatchConfig(examples=8), capacity=16, seed=2)
    assert second.differences(first.fingerprint) == [
        "train.seed was 1 and is now 2",
        "batch.examples was 4 and is now 8",
        "data.weights was none and is now 0.5, 0.5",
        "data.train[1] was absent and is now identity-of-b (9 rows)",
    ]
    assert first.differences(first.fingerprint) == []
    third = Plan.build([store, other], weights=[3, 3], batch=BatchConfig(examples=8), capacity=16, seed=2)
    assert third.differences(second.fingerprint) == []


def test_the_digest_tells_order_and_rows_apart() -> None:
    plan = Plan.build([ArrayExamples.of_lengths([5] * 100)], weights=None, batch=BatchConfig(examples=4), capacity=16, seed=1)
    digests = [plan.totals(step).digest for step in range(25)]
    assert len(set(digests)) == 25
    assert all(len(digest) == 32 for digest in digests)


def test_a_thousand_ranks_each_know_their_rows_alone() -> None:
    rng = np.random.default_rng(1)
    store = SizedExamples(np.clip(rng.lognormal(np.log(500), 1.0, 100_000), 2, 8192).astype(np.int32))
    plan = Plan.build([store], weights=None, batch=BatchConfig(examples=4096), capacity=8192, seed=1)
    step = 1_000_000
    rows = [row for rank in range(0, 1024, 64) for row in plan.rank_rows(step, rank, 1024)[:1]]
    assert len(rows) == 16
    dealt = plan.dealt(plan.refs(step), 1024)
    assert sorted(np.concatenate([row for rank in dealt for row in rank]).tolist()) == list(range(len(plan.refs(step))))
    assert [row.tolist() for row in rows] == [dealt[rank][0].tolist() for rank in range(0, 1024, 64)]


@given(
    lengths=st.lists(st.integers(1, CAPACITY), min_size=1, max_size=60).filter(lambda found: max(found) > 1),
    world=st.integers(1, 8),
    packing=packings,
)
def test_B63_an_eval_set_is_read_once_by_all_ranks_together(lengths: list[int], world: int, packing: str) -> None:
    store = ArrayExamples.of_lengths(lengths)
    plan = EvalPlan(store, CAPACITY, packing)
    ranks = [list(plan.batches(rank, world)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    assert sum(batch.tokens for batches in ranks for batch in batches) == sum(lengths)
    assert sum(float(batch.loss_weights.sum()) for batches in ranks for batch in batches) == plan.loss_weight
    assert sum(np.count_nonzero(batch.loss_weights) for batches in ranks for batch in batches) == plan.trained_tokens


def test_an_eval_set_of_several_windows() -> None:
    plan = EvalPlan(ArrayExamples.of_lengths([3] * 2500), 40)
    assert plan.windows == 3
    assert sum(batch.tokens for rank in range(2) for batch in plan.batches(rank, 2)) == 7500


@pytest.mark.parametrize("store", [ArrayExamples([]), ArrayExamples([[1, 2], [3, 4]], [[0, 0], [1, 0]])])
def test_an_eval_set_without_a_trained_token_is_refused(store: ArrayExamples) -> None:
    with pytest.raises(PlanError, match="'source' has no token to measure"):
        EvalPlan(store, 40)


@pytest.mark.parametrize(("files", "world"), [(5, 4), (1, 8), (3, 7)])
def test_B76_whatever_the_files_and_the_ranks_every_row_is_computed_once_an_epoch(tmp_path: Path, files: int, world: int) -> None:
    for number in range(files):
        write_lines(tmp_path / "data" / f"{number}.jsonl", [chat(f"q {number}", "a " * (1 + row % 9)) for row in range(20)])
    store = Store(prepare(tmp_path / "data", tmp_path / "cache").path)
    plan = Plan.build([store], batch=BatchConfig(examples=16), capacity=128, seed=1)
    computed: list[int] = []
    for step in range(plan.steps):
        refs, ranks = plan.refs(step), [plan.rank_rows(step, rank, world) for rank in range(world)]
        sizes = [sum(map(len, rows)) for rows in ranks]
        assert max(sizes) - min(sizes) <= 2
        computed += [int(refs.rows[index]) for rows in ranks for row in rows for index in row]
    assert sorted(computed) == list(range(20 * files))
