"""Packing and dealing: capacity, every example once, the same with and without compilation, and balanced ranks."""

from __future__ import annotations

import inspect

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.plan import packing
from arrowtune.plan.deal import cost, deal
from arrowtune.plan.mixture import take_turns
from arrowtune.plan.packing import lower_bound, pack, rows_of

Ints = npt.NDArray[np.int64]

capacities = st.integers(1, 300)
methods = st.sampled_from(["best_fit", "first_fit", "none"])


@st.composite
def problems(draw: st.DrawFn) -> tuple[Ints, int]:
    capacity = draw(capacities)
    return np.array(draw(st.lists(st.integers(1, capacity), max_size=80)), dtype=np.int64), capacity


def plain_best_fit(lengths: list[int], capacity: int) -> list[int]:
    """Rows as a list of rooms; of equally full rows the one that was touched last."""
    rooms: list[int] = []
    touched: list[int] = []
    rows = []
    for clock, length in enumerate(lengths):
        fitting = [row for row, room in enumerate(rooms) if room >= length]
        if fitting:
            row = min(fitting, key=lambda row: (rooms[row], -touched[row]))
        else:
            row = len(rooms)
            rooms.append(capacity)
            touched.append(clock)
        rooms[row] -= length
        touched[row] = clock
        rows.append(row)
    return rows


def plain_first_fit(lengths: list[int], capacity: int) -> list[int]:
    rooms: list[int] = []
    rows = []
    for length in lengths:
        row = next((row for row, room in enumerate(rooms) if room >= length), len(rooms))
        if row == len(rooms):
            rooms.append(capacity)
        rooms[row] -= length
        rows.append(row)
    return rows


@given(problem=problems(), method=methods)
def test_rows_stay_within_capacity_and_hold_every_example_once(problem: tuple[Ints, int], method: str) -> None:
    lengths, capacity = problem
    rows = rows_of(pack(lengths, capacity, method))
    assert all(lengths[row].sum() <= capacity for row in rows)
    assert all(len(row) for row in rows)
    assert sorted(np.concatenate([np.zeros(0, np.int64), *rows]).tolist()) == list(range(len(lengths)))
    assert len(rows) >= lower_bound(lengths, capacity)


@given(problem=problems())
@pytest.mark.parametrize(("method", "plain"), [("best_fit", plain_best_fit), ("first_fit", plain_first_fit)])
def test_packers_agree_with_a_plain_reading_of_the_rule(problem: tuple[Ints, int], method: str, plain: object) -> None:
    lengths, capacity = problem
    ordered = -np.sort(-lengths)
    assert callable(plain)
    expected = plain(ordered.tolist(), capacity)
    kernel = getattr(packing, method)
    assert kernel(ordered, capacity).tolist() == expected
    # Without numba the function runs as it is written.
    assert inspect.unwrap(kernel)(ordered, capacity).tolist() == expected


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any))
def test_turns_are_the_same_without_compilation(counts: list[int]) -> None:
    array = np.array(counts, dtype=np.int64)
    assert take_turns(array).tolist() == inspect.unwrap(take_turns)(array).tolist()
    assert np.bincount(take_turns(array), minlength=len(counts)).tolist() == counts


@given(problem=problems(), method=methods, world=st.integers(1, 64))
def test_ranks_have_equally_many_rows_and_hold_every_example_once(problem: tuple[Ints, int], method: str, world: int) -> None:
    lengths, capacity = problem
    assigned = pack(lengths, capacity, method)
    ranks = deal(lengths, assigned, capacity, world, spread=method != "none")
    rows = len(rows_of(assigned))
    assert [len(rank) for rank in ranks] == [max(1, -(-rows // world))] * world
    everything = [row for rank in ranks for row in rank]
    assert all(lengths[row].sum() <= capacity for row in everything)
    assert sorted(np.concatenate(everything).tolist()) == list(range(len(lengths)))
    if method == "none":
        assert all(len(row) <= 1 for row in everything)


@given(problem=problems(), method=methods)
def test_one_rank_has_exactly_the_packed_rows(problem: tuple[Ints, int], method: str) -> None:
    lengths, capacity = problem
    assigned = pack(lengths, capacity, method)
    dealt = [row.tolist() for row in deal(lengths, assigned, capacity, 1, spread=True)[0] if len(row)]
    assert sorted(dealt) == sorted(row.tolist() for row in rows_of(assigned))


def test_few_rows_are_spread_over_many_ranks() -> None:
    lengths = np.full(16, 500, dtype=np.int64)
    assigned = pack(lengths, 4000, "best_fit")
    assert len(rows_of(assigned)) == 2
    assert [[row.tolist() for row in rank] for rank in deal(lengths, assigned, 4000, 8, spread=True)] == [
        [[rank, rank + 8]] for rank in range(8)
    ]


def test_micro_steps_cost_alike_on_all_ranks() -> None:
    rng = np.random.default_rng(7)
    lengths = np.clip(rng.lognormal(np.log(500), 1.0, 512), 1, 8192).astype(np.int64)
    ranks = deal(lengths, pack(lengths, 8192, "best_fit"), 8192, 8, spread=True)
    costs = np.array([[cost(lengths)[row].sum() for row in rank] for rank in ranks])
    assert costs.max(axis=0).sum() / costs.mean(axis=0).sum() < 1.03
    assert costs.sum(axis=1).max() / costs.sum(axis=1).mean() < 1.02
    assert costs[:, 0].max() == costs.max()


@pytest.mark.parametrize("capacity", [4096, 8191, 8192, 8193, 16385, 65536, 70000])
def test_B58_every_capacity_packs(capacity: int) -> None:
    rng = np.random.default_rng(3)
    lengths = np.clip(rng.normal(capacity / 2, capacity / 16, 20_000), 1, capacity).astype(np.int64)
    for method in ("best_fit", "first_fit"):
        rows = len(rows_of(pack(lengths, capacity, method)))
        assert rows <= 1.01 * lower_bound(lengths, capacity)
        assert lengths.sum() / (rows * capacity) > 0.95


def test_lengths_of_real_chats_pack_within_two_in_a_thousand_of_the_bound() -> None:
    rng = np.random.default_rng(5)
    lengths = np.clip(rng.lognormal(np.log(500), 1.0, 100_000), 1, 8192).astype(np.int64)
    assert len(rows_of(pack(lengths, 8192, "best_fit"))) <= 1.002 * lower_bound(lengths, 8192)
