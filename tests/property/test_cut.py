"""How draws are cut into steps, each way held against a plain loop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.plan import Plan
from arrowtune.plan import cut as module
from arrowtune.plan.config import BatchConfig
from arrowtune.plan.cut import ByExamples, ByTokens, Cut, even_bounds
from support.plan import SizedExamples

_SMALL = 16


@pytest.fixture(autouse=True, scope="module")
def _small_windows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WINDOW", _SMALL)
        yield


def by_tokens(lengths: list[int], tokens: int, end: int | None = None) -> ByTokens:
    """Epochs in which the same lengths come in another order each."""
    size = len(lengths)

    def of(start: int, count: int) -> np.ndarray:
        return np.array([lengths[(draw + draw // size) % size] for draw in range(start, start + count)], np.int64)

    return ByTokens(tokens, of, size, end)


lengths = st.lists(st.integers(1, 30), min_size=1, max_size=70)


@given(lengths=lengths, tokens=st.integers(1, 100))
def test_batches_of_a_window_are_as_few_and_as_even_as_can_be(lengths: list[int], tokens: int) -> None:
    bounds = even_bounds(np.array(lengths, np.int64), tokens).tolist()
    parts = [lengths[start:end] for start, end in pairwise(bounds)]
    assert all(parts)
    assert [length for part in parts for length in part] == lengths
    assert all(sum(part) <= tokens or len(part) == 1 for part in parts)
    assert len(parts) == len(greedy(lengths, tokens))
    fullest = max(map(sum, parts))
    assert fullest <= max(lengths) or len(greedy(lengths, fullest - 1)) > len(parts)


def greedy(lengths: list[int], most: int) -> list[list[int]]:
    parts: list[list[int]] = []
    for length in lengths:
        if parts and sum(parts[-1]) + length <= most:
            parts[-1].append(length)
        else:
            parts.append([length])
    return parts


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Cut, int, int | None]:
    own = draw(lengths)
    end = draw(st.none() | st.integers(1, 3 * len(own)))
    if draw(st.booleans()):
        return ByExamples(draw(st.integers(1, 20)), len(own), end), len(own), end
    return by_tokens(own, draw(st.integers(1, 120)), end), len(own), end


@given(found=cuts())
def test_steps_follow_each_other_and_end_with_epochs_and_with_the_run(found: tuple[Cut, int, int | None]) -> None:
    cut, epoch, end = found
    at, last, step = 0, 3 * epoch if end is None else end, 0
    ends = []
    while at < last:
        start, count = cut.span(step)
        assert start == at
        assert count > 0
        assert (start + count - 1) // epoch == start // epoch
        assert cut.steps_of(start + 1) == cut.steps_of(start + count) == step + 1
        at += count
        step += 1
        ends.append(at)
    assert at == last
    if end is not None:
        assert cut.span(step) == cut.span(step + 5) == (end, 0)
    else:
        assert [cut.steps(number) for number in (1, 2, 3)] == [ends.index(number * epoch) + 1 for number in (1, 2, 3)]
        assert 1 <= cut.steps(0.5) <= cut.steps(1)
    for random in (step - 1, 0, step // 2):
        assert cut.span(random)[0] + cut.span(random)[1] == ends[random]


def test_tokens_of_batches_are_those_that_were_asked_for_whatever_the_ranks_and_the_packing() -> None:
    lengths = np.random.default_rng(1).integers(1, 100, 3000)
    batch = BatchConfig(tokens=4000)
    plan = Plan.build([SizedExamples(lengths, name="s")], batch=batch, capacity=128, seed=1, epochs=2)
    other = Plan.build(
        [SizedExamples(lengths, name="s")], batch=batch.model_copy(update={"packing": "none"}), capacity=256, seed=1, align=8
    )
    sizes = [int(plan.lengths(plan.refs(step)).sum()) for step in range(plan.steps)]
    assert max(sizes) <= 4000
    assert sum(sizes) == 2 * lengths.sum()
    assert [list(plan.refs(step)) for step in (0, 7, 20)] == [list(other.refs(step)) for step in (0, 7, 20)]
    assert plan.epoch(plan.steps_per_epoch) == 1.0
    assert plan.differences(
        Plan.build([SizedExamples(lengths, name="s")], batch=BatchConfig(), capacity=128, seed=1).fingerprint
    ) == [
        "batch.tokens was absent and is now 4000",
        "batch.examples was 32 and is now absent",
    ]


def test_the_step_before_which_so_many_tokens_were_seen() -> None:
    lengths = np.random.default_rng(1).integers(1, 100, 300)
    for batch in (BatchConfig(tokens=400), BatchConfig(examples=7)):
        plan = Plan.build([SizedExamples(lengths, name="s")], batch=batch, capacity=128, seed=1, epochs=3)
        seen = np.cumsum([0, *(int(plan.lengths(plan.refs(step)).sum()) for step in range(plan.steps))])
        for tokens in (0, 1, int(seen[1]), int(seen[1]) + 1, int(seen[20]) - 1, int(seen[20]), int(seen[-2])):
            assert plan.step_at(tokens) == int(np.searchsorted(seen, tokens))
        later = plan.shifted(4)
        assert later.steps == plan.steps - 4
        assert list(later.refs(2)) == list(plan.refs(6))


def test_what_was_counted_once_is_read_the_next_time(tmp_path: Path) -> None:
    own = list(range(1, 30)) * 12
    calls = []

    def lengths(start: int, count: int) -> np.ndarray:
        calls.append(start)
        return np.array([own[draw % len(own)] for draw in range(start, start + count)], np.int64)

    first = ByTokens(50, lengths, len(own), None, lambda epoch: tmp_path / f"{epoch}.npy")
    steps = first.steps(2)
    counted = len(calls)
    assert counted == 2 * -(-len(own) // _SMALL)
    assert ByTokens(50, lengths, len(own), None, lambda epoch: tmp_path / f"{epoch}.npy").steps(2) == steps
    assert len(calls) == counted
    (tmp_path / "0.npy").write_bytes(b"\x93NUMPY torn")
    assert ByTokens(50, lengths, len(own), None, lambda epoch: tmp_path / f"{epoch}.npy").steps(2) == steps
    nowhere = tmp_path / "0.npy" / "below a file"
    assert ByTokens(50, lengths, len(own), None, lambda epoch: nowhere / str(epoch)).steps(2) == steps
