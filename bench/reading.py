"""Rows per second from a warm store in random order, beside `datasets` in numpy format over the same rows, in the same process.

Batches of 64 rows, as a trainer draws them; every row is read once. Both sides are mapped files in the page cache.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from arrowtune.data.store import Store, Writer
from arrowtune.protocols import Tokens
from real_chats import ROOT

RESULTS = ROOT / "bench" / "results"
BATCH = 64


def tokens(rows: int, mean: int) -> Tokens:
    """Rows of log-normal length."""
    rng = np.random.default_rng(2)
    lengths = np.clip(rng.lognormal(np.log(mean) - 0.5, 1.0, rows).astype(np.int64), 2, 8192)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    ids = rng.integers(0, 150_000, int(offsets[-1])).astype(np.int32)
    return Tokens(ids, (ids % 2).astype(np.float32), offsets)


def speed(
    order: np.ndarray[Any, np.dtype[np.int64]], read: Callable[[np.ndarray[Any, np.dtype[np.int64]]], int]
) -> dict[str, Any]:
    """Rows per second, the better of two passes, and the sum of all ids, which both sides must agree on."""
    best, total = float("inf"), 0
    for _ in range(2):
        started = time.perf_counter()
        total = sum(read(order[k : k + BATCH]) for k in range(0, len(order), BATCH))
        best = min(best, time.perf_counter() - started)
    return {"rows_per_second": len(order) / best, "sum_of_ids": total}


def main() -> None:
    """Measure both and print the ratio."""
    from datasets import Dataset

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=50_000)
    options.add_argument("--mean", type=int, default=500)
    chosen = options.parse_args()
    data = tokens(chosen.rows, chosen.mean)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with Writer(folder / "store") as writer:
            writer.append(data)
            store = Store(writer.publish({"identity": "bench", "sources": []}))
        parts = [slice(int(a), int(b)) for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]
        columns = {
            "input_ids": [data.input_ids[part] for part in parts],
            "loss_mask": [data.loss_weights[part].astype(np.int8) for part in parts],
        }
        Dataset.from_dict(columns).save_to_disk(folder / "datasets")
        rows = Dataset.load_from_disk(str(folder / "datasets")).with_format("numpy")
        order = np.random.default_rng(3).permutation(chosen.rows)

        def theirs(batch: np.ndarray[Any, np.dtype[np.int64]]) -> int:
            found = rows[batch.tolist()]
            return sum(int(ids.sum()) for ids in found["input_ids"])

        result: dict[str, Any] = {
            "rows": chosen.rows,
            "arrowtune": speed(order, lambda batch: int(store.fetch(batch).input_ids.sum(dtype=np.int64))),
            "datasets": speed(order, theirs),
        }
    assert result["arrowtune"]["sum_of_ids"] == result["datasets"]["sum_of_ids"]
    result["ratio"] = result["arrowtune"]["rows_per_second"] / result["datasets"]["rows_per_second"]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "reading.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
