"""Learning rates against transformers' own schedules, and the arithmetic of the warm-up."""

from __future__ import annotations

import pytest

from arrowtune.training.config import ScheduleConfig
from arrowtune.training.schedules import Schedule, warmup_steps


def schedule(name: str, warmup: float, total: int = 50, min_lr: float = 0.0) -> Schedule:
    return Schedule.build(ScheduleConfig(name=name, warmup=warmup, min_lr=min_lr), peak=1.0, total_steps=total)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_the_shape_after_the_warm_up_is_that_of_transformers(name: str) -> None:
    import torch
    from transformers import get_scheduler

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    their_name = "constant_with_warmup" if name == "constant" else name
    theirs = get_scheduler(their_name, optimizer, num_warmup_steps=0, num_training_steps=50)
    ours = schedule(name, warmup=0)
    for step in range(50):
        assert ours.lr(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_the_warm_up_trains_from_the_first_step_and_arrives_at_the_peak() -> None:
    ours = schedule("cosine", warmup=10)
    assert [ours.lr(step) for step in range(10)] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert ours.lr(10) == 1.0


def test_min_lr_is_the_floor() -> None:
    ours = schedule("cosine", warmup=0, total=1000, min_lr=0.1)
    assert ours.lr(999) == pytest.approx(0.1, abs=1e-5)
    assert min(ours.lr(step) for step in range(1000)) >= 0.1


@pytest.mark.parametrize(
    ("warmup", "total", "steps"), [(0, 10, 0), (0.03, 100, 3), (0.03, 10, 1), (1, 10, 1), (5, 10, 5), (50, 10, 10)]
)
def test_warm_up_is_a_share_below_one_and_steps_from_there(warmup: float, total: int, steps: int) -> None:
    assert warmup_steps(warmup, total) == steps


def test_B70_the_rate_is_a_function_of_the_step_alone() -> None:
    unbroken = [schedule("cosine", 10, 100).lr(step) for step in range(100)]
    resumed = [schedule("cosine", 10, 100).lr(step) for step in range(37, 100)]
    assert resumed == unbroken[37:]
