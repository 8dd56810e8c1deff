"""Order and mixture: every row once, a new permutation per pass, exact shares, and any draw on its own."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.errors import PlanError
from arrowtune.plan import permutation
from arrowtune.plan.mixture import mixture
from arrowtune.plan.order import Order
from arrowtune.plan.permutation import permute, stream_key
from arrowtune.plan.shares import Phase, lay_out

sizes = st.lists(st.integers(1, 60), min_size=1, max_size=4)
weights = st.lists(st.floats(0.01, 100, allow_nan=False), min_size=1, max_size=6)


def order_of(sizes: list[int], weights: list[float] | None, seed: int = 1) -> Order:
    names = [f"s{index}" for index in range(len(sizes))]
    shares = None if weights is None else lay_out([Phase(tuple(weights))], [None] * len(sizes), names)
    return Order(sizes, shares, seed, names)


def shares_of(weights: list[float]) -> list[Fraction]:
    exact = [Fraction(repr(weight)) for weight in weights]
    return [weight / sum(exact) for weight in exact]


@given(n=st.integers(1, 3000), key=st.integers(0, 2**64 - 1), number=st.integers(0, 2**40))
def test_every_pass_is_a_permutation(n: int, key: int, number: int) -> None:
    values = permute(np.arange(n), np.full(n, number), n, key)
    assert sorted(values.tolist()) == list(range(n))


@given(n=st.integers(2, 2**62), key=st.integers(0, 2**64 - 1), data=st.data())
def test_positions_of_large_domains_stay_distinct_and_inside(n: int, key: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=50, unique=True))
    values = permute(np.array(positions), np.zeros(len(positions), np.int64), n, key)
    assert len(set(values.tolist())) == len(positions)
    assert values.min() >= 0
    assert values.max() < n


def test_small_permutations_are_all_reached_about_equally() -> None:
    passes = np.arange(24_000)
    columns = [permute(np.full(24_000, position), passes, 4, stream_key("chi")) for position in range(4)]
    seen = Counter(zip(*(column.tolist() for column in columns), strict=True))
    assert len(seen) == 24
    # Chi-square with 23 degrees of freedom; the 99.99 % quantile is 57.
    assert sum((count - 1000) ** 2 / 1000 for count in seen.values()) < 57


def test_neighbours_and_positions_are_uncorrelated() -> None:
    n = 100_003
    values = permute(np.arange(n), np.zeros(n, np.int64), n, stream_key("walk")).astype(float)
    assert abs(np.corrcoef(np.arange(n), values)[0, 1]) < 0.015
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.015


@given(sizes=sizes, seed=st.integers(0, 1000))
def test_without_weights_every_row_is_drawn_once_per_epoch(sizes: list[int], seed: int) -> None:
    order = order_of(sizes, None, seed)
    everything = sorted((store, row) for store, size in enumerate(sizes) for row in range(size))
    for epoch in range(3):
        assert sorted(order.refs(epoch * sum(sizes), sum(sizes))) == everything


def test_B77_epochs_and_seeds_have_different_orders_and_repeat_exactly() -> None:
    first, second = list(order_of([50, 50], None).refs(0, 100)), list(order_of([50, 50], None).refs(100, 100))
    assert first != second
    assert sorted(first) == sorted(second)
    assert list(order_of([50, 50], None, seed=2).refs(0, 100)) != first
    assert list(order_of([50, 50], None).refs(0, 200)) == first + second


@given(sizes=sizes, data=st.data())
def test_weighted_sources_are_read_in_a_fresh_permutation_per_pass(sizes: list[int], data: st.DataObject) -> None:
    shares = data.draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    refs = list(order_of(sizes, [float(share) for share in shares]).refs(0, 2000))
    for store, size in enumerate(sizes):
        rows = [ref.row for ref in refs if ref.store == store]
        passes = [rows[start : start + size] for start in range(0, len(rows) - size + 1, size)]
        assert all(sorted(one) == list(range(size)) for one in passes)
        if size >= 20 and len(passes) > 1:
            assert passes[0] != passes[1]


@given(parts=st.lists(st.integers(1, 40), min_size=1, max_size=6), start=st.integers(0, 10**9))
def test_shares_with_a_common_denominator_are_exact_at_every_single_draw(parts: list[int], start: int) -> None:
    mix = mixture([float(part) for part in parts], ["s"] * len(parts))
    sources, _ = mix.draw(start, 500)
    drawn = np.cumsum(sources[:, None] == np.arange(len(parts)), axis=0) + np.array(mix.counts(start))
    draws = start + np.arange(1, 501)
    # In whole numbers: |drawn - part / sum * draws| < 1.
    assert np.abs(drawn * sum(parts) - np.outer(draws, parts)).max() < sum(parts)


@given(weights=weights, number=st.integers(0, 10**9))
def test_B74_shares_are_exact_at_every_block_however_far(weights: list[float], number: int) -> None:
    mix = mixture(weights, ["s"] * len(weights))
    draws = number * mix.block
    before, after = mix.counts(draws), mix.counts(draws + mix.block)
    assert sum(before) == draws
    assert all(abs(count - share * draws) < 1 for count, share in zip(before, shares_of(weights), strict=True))
    assert all(later >= earlier for earlier, later in zip(before, after, strict=True))


@given(weights=weights, start=st.integers(0, 10**9))
def test_within_a_block_no_prefix_is_off_by_two(weights: list[float], start: int) -> None:
    mix = mixture(weights, ["s"] * len(weights))
    sources, before = mix.draw(start, 500)
    for source, share in enumerate(shares_of(weights)):
        own = np.flatnonzero(sources == source)
        # `before` counts the draws of the own source: at draw start + place it must be about share * (start + place).
        errors = [abs(int(count) - share * (start + int(place))) for place, count in zip(own, before[own], strict=True)]
        assert max(errors, default=0) < 2


@given(sizes=sizes, data=st.data(), start=st.integers(0, 10**7), count=st.integers(0, 300), cut=st.integers(0, 300))
def test_any_range_of_draws_is_the_same_on_its_own(
    sizes: list[int], data: st.DataObject, start: int, count: int, cut: int
) -> None:
    shares = data.draw(st.none() | st.lists(st.floats(0.05, 1), min_size=len(sizes), max_size=len(sizes)))
    order = order_of(sizes, shares)
    cut = min(cut, count)
    assert list(order.refs(start, count)) == list(order.refs(start, cut)) + list(order.refs(start + cut, count - cut))


def test_B74_half_means_half_of_the_examples_sampled_from_everywhere() -> None:
    refs = order_of([100, 10_000], [0.5, 0.5]).refs(0, 10_100)
    assert np.bincount(refs.stores).tolist() == [5050, 5050]
    large = refs.rows[refs.stores == 1]
    assert len(set(large.tolist())) == 5050
    # A sample of the whole source, not its head.
    assert large.min() < 100
    assert large.max() > 9_900


@pytest.mark.parametrize(
    ("sizes", "weights", "message"),
    [
        ([3, 0], [0.5, 0.5], "source 's1' has a weight but no example"),
        ([3, 3], [1.0, 1e-9], "weight 1e-09 of source 's1' is less than one example"),
        ([3, 3], [1.0, -1.0], "weight -1.0 of source 's1' is not a positive number"),
        ([3, 3], [1.0, float("nan")], "is not a positive number"),
        ([0, 0], None, "there is not a single example"),
    ],
)
def test_what_cannot_be_mixed_is_named(sizes: list[int], weights: list[float] | None, message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        order_of(sizes, weights)
    assert caught.value.hint


def test_an_empty_source_without_weights_gives_nothing() -> None:
    assert sorted(order_of([2, 0, 1], None).refs(0, 3)) == [(0, 0), (0, 1), (2, 0)]


@given(
    size=st.one_of(st.integers(1, 200), st.integers(1, 2**40)),
    key=st.integers(0, 2**64 - 1),
    passes=st.integers(0, 5),
    data=st.data(),
)
def test_compiled_or_not_a_permutation_is_the_same(size: int, key: int, passes: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50)), np.int64)
    turns = np.arange(len(positions)) // 7 + passes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "_MANY", 1)
        compiled = permutation.permute(positions, turns, size, key)
        patch.setattr(permutation, "can_compile", lambda: False)
        plain = permutation.permute(positions, turns, size, key)
    assert compiled.tolist() == plain.tolist()
