"""Packing and random access of the plan: `python bench/plan.py` prints one JSON object.

Packing runs on lengths as of real chats (log-normal, median 500, sigma 1.0, clipped to the capacity), beside the best fit
decreasing of TRL in the same process (TRL's call also moves the tokens). Every figure is the best of three after one
warm-up, so compilation is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from trl.data_utils import _pack_bfd

from arrowtune.plan import Plan
from arrowtune.plan.config import BatchConfig
from arrowtune.plan.packing import lower_bound, pack
from arrowtune.protocols import Tokens
from arrowtune.types import IntArray

CAPACITY = 8192
EXAMPLES = 100_000
STEP = 1_000_000


class Lengths:
    """A source of which only the lengths exist."""

    def __init__(self, name: str, lengths: IntArray) -> None:
        self.name = self.identity = name
        self.lengths = lengths.astype(np.int32)
        self.trained_tokens = self.lengths
        self.loss_weight_sums = lengths.astype(np.float64)

    def __len__(self) -> int:
        return len(self.lengths)

    def fetch(self, rows: IntArray) -> Tokens:
        """There are no tokens to read."""
        raise LookupError("this source has no tokens")


def best_of_three(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of three calls, after one that is not counted."""
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def chat_lengths(count: int, seed: int) -> npt.NDArray[np.int64]:
    """Lengths as of real chats."""
    drawn = np.random.default_rng(seed).lognormal(np.log(500), 1.0, count)
    return np.clip(drawn, 1, CAPACITY).astype(np.int64)


def packing() -> dict[str, Any]:
    """Examples a second of each packer and of TRL's, and rows beside the bound."""
    lengths = chat_lengths(EXAMPLES, seed=0)
    values = pa.array(np.zeros(int(lengths.sum()), dtype=np.int32))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), values)})
    theirs = EXAMPLES / best_of_three(lambda: _pack_bfd(table, CAPACITY))
    bound = lower_bound(lengths, CAPACITY)
    result: dict[str, Any] = {
        "trl_bfd": {"examples_per_second": theirs, "rows": len(_pack_bfd(table, CAPACITY))},
        "bound_rows": bound,
    }
    for method in ("best_fit", "first_fit"):
        ours = EXAMPLES / best_of_three(partial(pack, lengths, CAPACITY, method))
        rows = int(pack(lengths, CAPACITY, method).max()) + 1
        result[method] = {
            "examples_per_second": ours,
            "rows": rows,
            "over_bound": rows / bound - 1,
            "ratio_to_trl": ours / theirs,
        }
    return result


def access() -> dict[str, Any]:
    """Milliseconds for step 1,000,000 with 4,096 examples over three sources of together 10 M rows."""
    sizes = {"a": 8_000_000, "b": 1_900_000, "c": 100_000}
    stores = [Lengths(name, chat_lengths(rows, seed=rows)) for name, rows in sizes.items()]
    batch = BatchConfig(examples=4096)
    result: dict[str, Any] = {}
    for label, weights in (("unweighted", None), ("weighted", [0.6, 0.3, 0.1]), ("odd weights", [0.612345678, 0.3123, 0.07])):
        plan = Plan.build(stores, weights=weights, batch=batch, capacity=CAPACITY, seed=1, epochs=1)
        result[label] = {
            "refs_ms": 1000 * best_of_three(partial(plan.refs, STEP)),
            "totals_ms": 1000 * best_of_three(partial(plan.totals, STEP)),
            "one_of_8_ranks_ms": 1000 * best_of_three(partial(plan.rank_rows, STEP, 3, 8)),
            "one_of_1024_ranks_ms": 1000 * best_of_three(partial(plan.rank_rows, STEP, 3, 1024)),
        }
    return result


if __name__ == "__main__":
    print(json.dumps({"packing": packing(), "access": access()}, indent=2))
