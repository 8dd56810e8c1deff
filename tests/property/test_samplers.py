"""Other orders than the random one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.errors import PlanError
from arrowtune.plan import Plan
from arrowtune.plan.config import BatchConfig
from arrowtune.plan.report import report
from arrowtune.types import Ref
from support.plan import ArrayExamples

ROOT = Path(__file__).parents[2]


def plan_of(lengths: Sequence[Sequence[int]], sampler: str, batch: int = 4, **fields: Any) -> Plan:
    stores = [ArrayExamples.of_lengths(own, name=f"s{index}") for index, own in enumerate(lengths)]
    return Plan.build(stores, sampler=sampler, batch=BatchConfig(examples=batch), capacity=64, **{"seed": 1, **fields})


@given(
    lengths=st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=300), min_size=1, max_size=3),
    batch=st.integers(1, 9),
    seed=st.integers(0, 5),
)
def test_grouped_by_length_an_epoch_has_every_row_once(lengths: list[list[int]], batch: int, seed: int) -> None:
    plan = plan_of(lengths, "length_grouped", batch, seed=seed)
    for epoch in range(2):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        refs = [ref for step in steps for ref in plan.refs(step)]
        assert sorted(refs) == [(index, row) for index, own in enumerate(lengths) for row in range(len(own))]


def test_grouped_by_length_batches_are_of_like_length_and_in_random_order() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 2000).tolist()
    spread, means = {}, {}
    for sampler in ("random", "length_grouped"):
        plan = plan_of([lengths], sampler, 16)
        batches = [plan.lengths(plan.refs(step)) for step in range(plan.steps_per_epoch - 1)]
        spread[sampler] = np.mean([batch.max() - batch.min() for batch in batches])
        means[sampler] = np.array([batch.mean() for batch in batches])
    assert spread["length_grouped"] < spread["random"] / 10
    neighbours = np.corrcoef(means["length_grouped"][:-1], means["length_grouped"][1:])[0, 1]
    assert abs(neighbours) < 0.3


@pytest.mark.parametrize("sampler", ["sequential", "length_grouped", f"{__file__}:EveryThird", f"{__file__}:Shuffled"])
def test_a_step_is_the_same_whenever_it_is_asked(sampler: str) -> None:
    lengths = [[3, 9, 4, 1, 5] * 20, [2, 6] * 15]
    once = plan_of(lengths, sampler, steps=60)
    in_order = [list(once.refs(step)) for step in range(60)]
    for step in (59, 3, 40, 0, 41):
        assert list(once.refs(step)) == in_order[step]
        assert list(plan_of(lengths, sampler, steps=60).refs(step)) == in_order[step]


class EveryThird:
    """A pure sampler that draws of the first source only."""

    def __init__(self, sources: Sequence[Any], *, seed: int, by: int = 3) -> None:
        self.size, self.by, self.seed = len(sources[0]), by, seed

    def refs(self, start: int, count: int) -> list[tuple[int, int]]:
        return [(0, draw * self.by % self.size) for draw in range(start, start + count)]


class Shuffled:
    """As torch's samplers are: an iterable of indices, another order each epoch."""

    def __init__(self, sources: Sequence[Any], *, seed: int) -> None:
        self.size, self.seed, self.epoch = sum(map(len, sources)), seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield from np.random.default_rng([self.seed, self.epoch]).permutation(self.size).tolist()


class Half:
    """An iterable over a part of the rows."""

    def __init__(self, sources: Sequence[Any], *, seed: int) -> None:
        self.size = len(sources[0]) // 2

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


class Short(EveryThird):
    def refs(self, start: int, count: int) -> list[tuple[int, int]]:
        return super().refs(start, count - 1)


class Beyond(EveryThird):
    def refs(self, start: int, count: int) -> list[tuple[int, int]]:
        return [(1, 0)] * count


class Nothing:
    def __init__(self, sources: Sequence[Any], *, seed: int) -> None:
        pass


def test_a_sampler_of_ones_own_decides_alone() -> None:
    plan = plan_of([[5] * 9], f"{__file__}:EveryThird", 4, sampler_options={"by": 2}, steps=3)
    assert list(plan.refs(1)) == [Ref(0, 8), Ref(0, 1), Ref(0, 3), Ref(0, 5)]
    assert plan.fingerprint["data.sampler"] == f'{__file__}:EveryThird {{"by": 2}}'
    assert [source.examples for source in report(plan).sources] == [9]  # An epoch: the third step takes what is left.


def test_a_sampler_says_how_long_an_epoch_is() -> None:
    plan = plan_of([[5] * 9], f"{__file__}:Half", 2, epochs=3)
    assert (plan.examples_per_epoch, plan.steps_per_epoch, plan.steps) == (4, 2, 6)
    assert [ref.row for step in range(4) for ref in plan.refs(step)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_torch_sampler_gives_every_row_once_an_epoch() -> None:
    plan = plan_of([[5] * 9, [4] * 4], f"{__file__}:Shuffled", 4)
    first, second = ([ref for step in range(4 * epoch, 4 * epoch + 4) for ref in plan.refs(step)] for epoch in range(2))
    assert sorted(first) == sorted(second) == [(0, row) for row in range(9)] + [(1, row) for row in range(4)]
    assert first != second


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{__file__}:Short", "gave 3 examples for draws 0 to 4"),
        (f"{__file__}:Beyond", "gave row 0 of source 1 for draw 0: the sources have 9 rows"),
        (f"{__file__}:Nothing", "has no method refs"),
        (f"{__file__}:Missing", "cannot be loaded: AttributeError"),
        ("nowhere.at_all:Class", "cannot be loaded: ModuleNotFoundError"),
        ("/no/such/file.py:Class", "cannot be loaded: FileNotFoundError"),
    ],
)
def test_a_sampler_that_does_not_work_is_named(name: str, message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        plan_of([[5] * 9], name).refs(0)
    assert name in str(caught.value)


def test_the_sampler_of_the_documents_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    [code] = [block.split("```")[0] for block in page.split("```python\n")[1:] if "class Curriculum" in block]
    assert len(code.splitlines()) <= 20
    (tmp_path / "curriculum.py").write_text(code, encoding="utf-8")
    lengths = np.random.default_rng(0).integers(1, 60, 200).tolist()
    plan = plan_of([lengths], f"{tmp_path}/curriculum.py:Curriculum", 10)
    means = [plan.lengths(plan.refs(step)).mean() for step in range(20)]
    assert means[0] < means[10] < means[19]
    assert max(Counter(ref for step in range(20) for ref in plan.refs(step)).values()) == 1
