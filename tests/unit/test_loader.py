"""The loader: order, errors with their traceback, and an end that never hangs."""

from __future__ import annotations

import threading
import traceback

import pytest

from arrowtune.plan import Loader, Plan
from arrowtune.plan.config import BatchConfig
from arrowtune.plan.packing import pack
from arrowtune.protocols import Tokens
from arrowtune.types import IntArray
from support.plan import ArrayExamples


class Torn(ArrayExamples):
    """Examples of which the third read fails."""

    reads = 0

    def fetch(self, rows: IntArray) -> Tokens:
        self.reads += 1
        if self.reads == 3:
            raise OSError("the shard is torn")
        return super().fetch(rows)


class Stuck(ArrayExamples):
    """Examples whose reads wait until they are released."""

    def __init__(self) -> None:
        super().__init__([[1, 2, 3]] * 8)
        self.release = threading.Event()

    def fetch(self, rows: IntArray) -> Tokens:
        self.release.wait()
        return super().fetch(rows)


def plan_of(store: ArrayExamples) -> Plan:
    return Plan.build([store], weights=None, batch=BatchConfig(examples=2), capacity=16, seed=1, epochs=1)


def test_steps_come_in_order_and_equal_the_plan() -> None:
    plan = plan_of(ArrayExamples.of_lengths([3, 4, 5, 6, 7, 8, 9]))
    with Loader(plan, 1, 2, start=1) as loader:
        seen = list(loader)
    assert [planned.step for planned in seen] == [1, 2, 3]
    for planned in seen:
        expected = plan.batches(planned.step, 1, 2)
        assert [batch.input_ids.tolist() for batch in planned.batches] == [batch.input_ids.tolist() for batch in expected]
        assert planned.totals == plan.totals(planned.step, 2)


@pytest.mark.parametrize("world", [1, 3])
def test_a_rank_packs_every_step_once(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    plan = plan_of(ArrayExamples.of_lengths([3, 4, 5, 6, 7, 8, 9]))
    packed: list[list[int]] = []

    def counted(lengths: IntArray, capacity: int, method: str) -> IntArray:
        packed.append(lengths.tolist())
        return pack(lengths, capacity, method)

    monkeypatch.setattr("arrowtune.plan.plan.pack", counted)
    with Loader(plan, 0, world) as loader:
        assert len(list(loader)) == plan.steps
    assert packed == [plan.lengths(plan.refs(step)).tolist() for step in range(plan.steps)]


def test_an_error_travels_after_the_steps_before_it_and_names_its_place() -> None:
    loader = Loader(plan_of(Torn([[1, 2, 3]] * 8)), 0, 1)
    assert [next(loader).step, next(loader).step] == [0, 1]
    with pytest.raises(OSError, match="the shard is torn") as caught:
        next(loader)
    assert "in fetch" in "".join(traceback.format_tb(caught.value.__traceback__))
    loader.close()


def test_closing_with_a_full_queue_returns_and_ends_the_thread() -> None:
    loader = Loader(plan_of(ArrayExamples([[1, 2, 3]] * 100)), 0, 1, ahead=1)
    assert next(loader).step == 0
    loader.close()
    loader.close()
    assert not any(thread.name == "arrowtune-loader" for thread in threading.enumerate())
    assert list(loader) == []


def test_closing_wakes_a_consumer_that_waits() -> None:
    store = Stuck()
    loader = Loader(plan_of(store), 0, 1)
    seen: list[int] = []
    consumer = threading.Thread(target=lambda: seen.extend(planned.step for planned in loader))
    consumer.start()
    closer = threading.Thread(target=loader.close)
    closer.start()
    consumer.join(timeout=60)
    assert not consumer.is_alive()
    assert seen == []
    store.release.set()
    closer.join(timeout=60)
    assert not closer.is_alive()


def test_nothing_to_do_is_an_empty_loader() -> None:
    with Loader(plan_of(ArrayExamples([[1, 2]] * 4)), 0, 1, start=2) as loader:
        assert list(loader) == []
