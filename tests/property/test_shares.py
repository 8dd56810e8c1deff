"""Mixtures over a whole run: caps on passes, ends, and weights that change by step, each held against a plain loop."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.errors import PlanError
from arrowtune.plan import Order, Plan
from arrowtune.plan.config import BatchConfig
from arrowtune.plan.mixing import Mixing
from arrowtune.plan.mixture import mixture
from arrowtune.plan.report import report
from arrowtune.plan.shares import Phase, Shares, lay_out
from support.plan import ArrayExamples

weights = st.lists(st.sampled_from([0.1, 0.25, 0.5, 1.0, 3.0, 0.3333]), min_size=1, max_size=4)


def names(count: int) -> list[str]:
    return [f"s{index}" for index in range(count)]


def stores(*sizes: int) -> list[ArrayExamples]:
    return [ArrayExamples.of_lengths([5] * size, name=f"s{index}") for index, size in enumerate(sizes)]


@given(weights=weights, data=st.data())
def test_the_draw_at_which_a_source_has_been_drawn_so_often(weights: list[float], data: st.DataObject) -> None:
    mix = mixture(weights, names(len(weights)))
    source = data.draw(st.integers(0, len(weights) - 1))
    count = data.draw(st.integers(1, 3000))
    draws = mix.draws_until(source, count)
    assert mix.counts(draws)[source] == count
    assert mix.counts(draws - 1)[source] == count - 1


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Shares, list[Phase], list[int | None], bool]:
    count = draw(st.integers(1, 4))
    one = st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0])
    ends = sorted(draw(st.sets(st.integers(1, 400), max_size=2)))
    phases = [Phase(tuple(draw(st.lists(one, min_size=count, max_size=count).filter(any))), end) for end in [*ends, None]]
    caps = draw(st.lists(st.none() | st.integers(1, 200), min_size=count, max_size=count))
    stop = draw(st.booleans())
    return lay_out(phases, caps, names(count), stop=stop), phases, caps, stop


@given(layout=layouts(), start=st.integers(0, 700), count=st.integers(0, 300))
def test_any_draws_are_those_of_the_whole_and_counts_agree(
    layout: tuple[Shares, list[Phase], list[int | None], bool], start: int, count: int
) -> None:
    shares = layout[0]
    last = 1000 if shares.end is None else shares.end
    start, count = min(start, last), min(count, max(0, last - start))
    sources, drawn = shares.draw(0, last)
    part = shares.draw(start, count)
    assert part[0].tolist() == sources[start : start + count].tolist()
    assert part[1].tolist() == drawn[start : start + count].tolist()
    seen: Counter[int] = Counter()
    for place, (source, before) in enumerate(zip(sources.tolist(), drawn.tolist(), strict=True)):
        assert before == seen[source]
        seen[source] += 1
        if place % 97 == 0:
            assert shares.counts(place + 1) == [seen[index] for index in range(len(layout[2]))]


@given(layout=layouts())
def test_caps_hold_ends_are_where_they_are_said_and_shares_follow_the_weights(
    layout: tuple[Shares, list[Phase], list[int | None], bool],
) -> None:
    shares, phases, caps, stop = layout
    last = 1000 if shares.end is None else shares.end
    sources = shares.draw(0, last)[0].tolist()
    seen = Counter(sources)
    assert all(cap is None or seen[index] <= cap for index, cap in enumerate(caps))
    if shares.end is not None and stop and shares.ended_by is not None:
        assert seen[shares.ended_by] == caps[shares.ended_by]
        assert sources[-1] == shares.ended_by
    # A plain loop: whoever is furthest behind its share among those who may be drawn is never two draws away from it.
    at, owed, own = 0, [0.0] * len(caps), Counter[int]()
    for phase in phases:
        while at < last and (phase.until is None or at < phase.until):
            active = [index for index, cap in enumerate(caps) if phase.weights[index] and (cap is None or own[index] < cap)]
            whole = sum(phase.weights[index] for index in active)
            for index in active:
                owed[index] += phase.weights[index] / whole
            assert sources[at] in active
            own[sources[at]] += 1
            at += 1
    assert all(abs(owed[index] - own[index]) < 2 * len(shares.segments) for index in range(len(caps)))


def test_a_source_with_few_rows_leaves_its_share_to_the_others_once_it_was_seen_so_often() -> None:
    plan = Plan.build(
        stores(10, 1000),
        mixing=Mixing(weights=[0.5, 0.5], max_passes=[3.0, None]),
        batch=BatchConfig(examples=10),
        capacity=16,
        seed=1,
        steps=50,
    )
    rows = Counter(ref for step in range(50) for ref in plan.refs(step))
    assert [rows[0, row] for row in range(10)] == [3] * 10
    assert sum(count for (store, _), count in rows.items() if store == 1) == 470
    assert [source.examples for source in report(plan).sources] == [30, 470]


def test_a_run_stops_where_the_first_source_runs_out() -> None:
    arguments = {"batch": BatchConfig(examples=8), "capacity": 16, "seed": 1}
    plan = Plan.build(stores(10, 1000), mixing=Mixing(weights=[0.5, 0.5], exhausted="stop"), **arguments)  # type: ignore[arg-type]
    sizes = [len(plan.refs(step)) for step in range(plan.steps)]
    assert sizes == [8, 8, 3] or sizes == [8, 8, 4]
    rows = Counter(ref for step in range(plan.steps) for ref in plan.refs(step))
    assert max(rows.values()) == 1
    assert sum(store == 0 for store, _ in rows) == 10
    assert "the run ends after step 3 of 127: source 's0' has no example left" in report(plan).warnings
    with pytest.raises(PlanError, match="source 's0' has no example left after step 3, and the run has 127"):
        Plan.build(stores(10, 1000), mixing=Mixing(weights=[0.5, 0.5], exhausted="error"), **arguments)  # type: ignore[arg-type]
    short = Plan.build(stores(10, 1000), mixing=Mixing(weights=[0.5, 0.5], exhausted="error"), steps=2, **arguments)  # type: ignore[arg-type]
    assert short.steps == 2


def test_without_weights_a_run_stops_after_an_epoch() -> None:
    plan = Plan.build(stores(10), mixing=Mixing(exhausted="stop"), batch=BatchConfig(examples=4), capacity=16, seed=1, epochs=3)
    assert plan.steps == 3
    assert sorted(ref.row for step in range(3) for ref in plan.refs(step)) == list(range(10))


def test_weights_by_step() -> None:
    schedule = [(5, {"s0": 1.0}), (15, {"s0": 0.5, "s1": 0.5}), (None, {"s1": 1.0})]
    plan = Plan.build(
        stores(40, 60), mixing=Mixing(schedule=schedule), batch=BatchConfig(examples=10), capacity=16, seed=1, steps=30
    )
    shares = [sum(ref.store for ref in plan.refs(step)) / 10 for step in range(30)]
    assert shares == [0.0] * 5 + [0.5] * 10 + [1.0] * 15
    other = Plan.build(stores(40, 60), weights=[1, 1], batch=BatchConfig(examples=10), capacity=16, seed=1, steps=30)
    assert plan.differences(other.fingerprint) == [
        "data.weights was 0.5, 0.5 and is now 1.0, 0.0 until draw 50; 0.5, 0.5 until draw 150; 0.0, 1.0"
    ]


def test_weights_that_follow_sizes() -> None:
    plan = Plan.build(stores(100, 400, 0), weights=["size^0.5", "size^0.5", "size"], batch=BatchConfig(), capacity=16, seed=1)
    assert plan.order.shares is not None
    assert plan.order.shares.counts(300) == [100, 200, 0]
    assert plan.fingerprint["data.weights"] == "0.3333333333333333, 0.6666666666666666, 0.0"


def test_what_is_not_asked_for_is_no_part_of_the_fingerprint() -> None:
    plan = Plan.build(stores(4), batch=BatchConfig(examples=2), capacity=16, seed=1)
    assert list(plan.fingerprint) == ["order", "train.seed", "batch.examples", "data.weights", "data.train[0]"]
    assert plan.fingerprint["data.weights"] == "none"


def test_in_sequence_rows_come_as_they_stand() -> None:
    order = Order([3, 2], None, None, names(2))
    assert list(order.refs(3, 5)) == [(1, 0), (1, 1), (0, 0), (0, 1), (0, 2)]
    shares = lay_out([Phase((2, 1))], [None, None], names(2))
    rows = list(Order([3, 2], shares, None, names(2)).refs(0, 12))
    assert [row for store, row in rows if store == 0] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [row for store, row in rows if store == 1] == [0, 1, 0, 1]
