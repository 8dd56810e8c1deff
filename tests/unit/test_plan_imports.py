"""What the plan and the trackers load: commands that answer at once import them."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["arrowtune.plan", "arrowtune.plan.report", "arrowtune.track"])
def test_nothing_heavy_is_loaded(module: str) -> None:
    heavy = ("torch", "transformers", "numba", "rich", "pyarrow")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_without_numba_the_plan_is_the_same() -> None:
    code = """
import sys
if {block}: sys.modules["numba"] = None
import numpy as np
from arrowtune.plan import Plan
from arrowtune.plan.config import BatchConfig
class Sized:
    name = identity = "s"
    def __init__(self, lengths):
        self.lengths = lengths
        self.trained_tokens = lengths
        self.loss_weight_sums = lengths.astype(float)
    def __len__(self):
        return len(self.lengths)
stores = [Sized((np.arange(300) * 7919 % 500 + 1).astype(np.int32)), Sized(np.full(40, 77, np.int32))]
for packing in ("best_fit", "first_fit"):
    plan = Plan.build(stores, weights=[0.7, 0.3], batch=BatchConfig(examples=48, packing=packing), capacity=512, seed=3)
    for step in range(4):
        print(plan.totals(step).digest, [[row.tolist() for row in plan.rank_rows(step, rank, 5)] for rank in range(5)])
"""
    outputs = [
        subprocess.run([sys.executable, "-c", code.replace("{block}", block)], capture_output=True, text=True, check=True).stdout
        for block in ("True", "False")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 8
