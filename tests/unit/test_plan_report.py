"""The report of a plan against the plan itself, step by step."""

from __future__ import annotations

import json

import numpy as np
import pytest

from arrowtune.plan import Plan
from arrowtune.plan.config import BatchConfig
from arrowtune.plan.report import report
from support.plan import SizedExamples


def plan_of(
    weights: list[float] | None, *, examples: int = 16, epochs: float = 2.0, capacity: int = 4096, packing: str = "best_fit"
) -> Plan:
    rng = np.random.default_rng(11)
    stores = [SizedExamples(rng.integers(2, 2000, size), name=f"s{size}") for size in (300, 90, 7)]
    batch = BatchConfig.model_validate({"examples": examples, "packing": packing})
    return Plan.build(stores, weights=weights, batch=batch, capacity=capacity, seed=1, epochs=epochs)


@pytest.mark.parametrize("weights", [None, [0.6, 0.3, 0.1], [1.0, 2.5, 0.123]])
@pytest.mark.parametrize("epochs", [1.0, 2.0, 2.7])
def test_totals_equal_the_sum_over_all_steps(weights: list[float] | None, epochs: float) -> None:
    plan = plan_of(weights, epochs=epochs)
    found = report(plan)
    steps = [plan.totals(step) for step in range(plan.steps)]
    assert not found.estimated
    assert found.examples == sum(step.examples for step in steps)
    assert found.tokens == sum(step.tokens for step in steps)
    assert found.trained_tokens == sum(step.trained_tokens for step in steps)
    for source in found.sources:
        assert source.examples == sum(step.per_source[source.name] for step in steps)
    assert sum(source.share_of_tokens for source in found.sources) == pytest.approx(1)


def test_packing_figures_equal_a_count_over_rows() -> None:
    plan = plan_of(None)
    found = report(plan)
    rows = [len(plan.rows(step)) for step in range(plan.steps)]
    assert found.sampled_steps == plan.steps
    assert found.rows_per_step == pytest.approx(np.mean(rows))
    assert found.packing_efficiency == pytest.approx(found.tokens / (sum(rows) * 4096))
    assert found.packing_efficiency <= found.packing_bound <= 1
    assert found.padding == 0
    assert found.imbalance == 0


def test_long_runs_are_sampled_evenly() -> None:
    found = report(plan_of(None, examples=1, epochs=10))
    assert found.steps == 3970
    assert found.sampled_steps == 64


def test_shares_are_reported_in_rows_and_in_tokens() -> None:
    found = report(plan_of([0.6, 0.3, 0.1], epochs=1.0))
    assert [source.weight for source in found.sources] == [0.6, 0.3, 0.1]
    assert [source.share_of_examples for source in found.sources] == pytest.approx([0.6, 0.3, 0.1], abs=1 / 397)
    assert found.sources[2].passes == pytest.approx(39.7 / 7, abs=1 / 7)


def test_idle_ranks_and_poor_packing_are_warned_of() -> None:
    assert report(plan_of(None)).warnings == ()
    assert report(plan_of(None, packing="none")).warnings == ()
    (idle,) = report(plan_of(None, examples=4, capacity=8192), world=8).warnings
    assert idle == "batch.examples=4 keeps only 4 of 8 ranks busy"
    store = SizedExamples(np.full(100, 2100))
    plan = Plan.build([store], weights=None, batch=BatchConfig(examples=10), capacity=4096, seed=1)
    (poor,) = report(plan).warnings
    assert "only 51% full" in poor
    assert poor.endswith("batch.micro_tokens=4096: 5120 would fill them to 82%")


def test_rows_that_no_capacity_would_fill_are_not_warned_of() -> None:
    store = SizedExamples(np.full(100, 2100))
    for batch in (BatchConfig(examples=1), BatchConfig(examples=10, packing="none")):
        plan = Plan.build([store], weights=None, batch=batch, capacity=8192, seed=1)
        assert report(plan).packing_efficiency < 0.3
        assert report(plan).warnings == ()


def test_many_ranks_show_their_imbalance_and_padding() -> None:
    found = report(plan_of(None, examples=20, packing="none"), world=16)
    assert found.padding > 0
    assert found.imbalance > 0


def test_it_is_plain_json() -> None:
    found = report(plan_of([0.6, 0.3, 0.1]), world=2)
    assert json.loads(json.dumps(found.to_json()))["sources"][0]["name"] == "s300"
