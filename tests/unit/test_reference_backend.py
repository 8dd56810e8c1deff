"""The reference backend against torch: the same loss, gradient and update."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arrowtune.backends import open_backend
from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.plan import Plan
from arrowtune.plan.config import BatchConfig
from support.plan import ArrayExamples

OPTIMIZER = OptimizerConfig(lr=0.1, weight_decay=0.01, max_grad_norm=0.5)


def opened(optimizer: OptimizerConfig = OPTIMIZER):
    return open_backend(ModelConfig(config={"vocab_size": 20}), StrategyConfig(name="reference"), optimizer, seed=1)


def plan(examples: int = 6) -> Plan:
    rng = np.random.default_rng(0)
    store = ArrayExamples([rng.integers(0, 20, rng.integers(2, 9)).tolist() for _ in range(12)])
    return Plan.build([store], weights=None, batch=BatchConfig(examples=examples), capacity=16, seed=0, epochs=3)


def test_steps_equal_torch() -> None:
    import torch

    backend, steps = opened(), plan()
    tables = [torch.nn.Parameter(torch.tensor(table)) for table in backend.model.arrays()]
    adam = torch.optim.AdamW(tables, lr=0.1, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps, weight_decay=0.01)
    for step in range(steps.steps):
        weight = steps.totals(step).loss_weight
        losses = []
        for batch in steps.batches(step, 0, 1):
            logits = tables[0][torch.from_numpy(batch.input_ids)] @ tables[1]
            losses.append(
                (
                    torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.targets), reduction="none")
                    * torch.from_numpy(batch.loss_weights)
                ).sum()
            )
        loss = torch.stack(losses).sum()
        (loss / weight).backward()
        norm = torch.nn.utils.clip_grad_norm_(tables, 0.5)
        adam.step()
        adam.zero_grad()
        result = backend.train_step(steps.batches(step, 0, 1), loss_weight=weight, lr=0.1)
        assert result.loss_sum == pytest.approx(loss.item(), rel=1e-12)
        assert result.grad_norm == pytest.approx(norm.item(), rel=1e-12)
    for ours, theirs in zip(backend.model.arrays(), tables, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-7)


def test_save_and_load_continue_bit_equally(tmp_path: Path) -> None:
    steps, unbroken, other = plan(), opened(), opened(OPTIMIZER)

    def run(backend, first: int, last: int) -> list[float]:
        return [
            backend.train_step(steps.batches(s, 0, 1), loss_weight=steps.totals(s).loss_weight, lr=0.1).loss_sum
            for s in range(first, last)
        ]

    run(unbroken, 0, 3)
    unbroken.save(tmp_path)
    other.load(tmp_path)
    assert run(other, 3, 6) == run(unbroken, 3, 6)


def test_a_rate_of_zero_leaves_the_weights_bit_equal() -> None:
    backend, steps = opened(), plan()
    before = [table.copy() for table in backend.model.arrays()]
    backend.train_step(steps.batches(0, 0, 1), loss_weight=1.0, lr=0.0)
    for ours, theirs in zip(backend.model.arrays(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
