"""An evaluation can be left off between two micro-batches, and then has no result."""

from __future__ import annotations

from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.backends.reference.backend import ReferenceBackend
from arrowtune.plan import EvalPlan
from arrowtune.training.loop import evaluate
from support.parity import examples

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
