"""An evaluation can be left off between two micro-batches, and then has no result."""

from __future__ import annotations

import pytest

from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.backends.reference.backend import ReferenceBackend
from arrowtune.plan import EvalPlan
from arrowtune.training.loop import evaluate
from support.parity import examples
from support.plan import ArrayExamples

BACKEND = ReferenceBackend.open(ModelConfig(), StrategyConfig(name="reference"), OptimizerConfig(), seed=1)


def sets() -> list[EvalPlan]:
    """Two sets of forty micro-batches of one example each."""
    return [EvalPlan(examples(40), 64, "none") for _ in range(2)]


def test_every_set_is_measured_unless_it_is_left_off() -> None:
    assert len(list(evaluate(BACKEND, sets(), 3))) == 2
    asked: list[bool] = []
    assert len(list(evaluate(BACKEND, sets(), 3, lambda: bool(asked.append(False))))) == 2
    assert len(asked) == 4


def test_what_is_left_off_has_no_result_and_no_later_set_is_begun() -> None:
    answers = iter([False, False, True])
    assert len(list(evaluate(BACKEND, sets(), 3, lambda: next(answers)))) == 1


def test_B63_the_loss_of_a_set_is_the_same_however_its_rows_are_put_together() -> None:
    rows = ArrayExamples([[1 + k % 7 for k in range(length)] for length in (2, 5, 9, 20, 51)], name="five")
    losses = []
    for capacity, packing in ((51, "none"), (64, "best_fit"), (256, "best_fit"), (51, "first_fit")):
        [stats] = evaluate(BACKEND, [EvalPlan(rows, capacity, packing)], 1)
        losses.append(stats.loss)
        assert stats.trained_tokens == 82
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-6)
    plan = EvalPlan(rows, 64, "best_fit")
    for world in (2, 4):  # What each rank adds to the sum; a rank with nothing left adds nothing.
        parts = [BACKEND.eval_loss(plan.batches(rank, world)) for rank in range(world)]
        assert sum(parts) / plan.loss_weight == pytest.approx(losses[0], rel=1e-6)
