"""A hundred million rows in three sources: what lies between warm stores and the first batch, in a fresh process.

The stores are made by the Writer, with short rows (4 tokens at the mean), so that they fit on a disk; what is measured depends
on the number of rows alone. Memory is what the process holds beyond files that it maps (RssAnon). Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from arrowtune.data.store_writer import Writer
from arrowtune.protocols import Tokens

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
SHARES = (0.5, 0.3, 0.2)
AT_ONCE = 1_000_000

MEASURED = """
import json, resource, sys, time
started = time.perf_counter()

def anonymous():
    [line] = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024

from pathlib import Path
from arrowtune.data.store import Store
from arrowtune.plan import Loader, Plan
from arrowtune.plan.config import BatchConfig
folder, kind = Path(sys.argv[1]), sys.argv[2]
imported, before = time.perf_counter(), anonymous()
stores = [Store(folder / name) for name in ("s0", "s1", "s2")]
batch = BatchConfig(tokens=16384) if kind == "tokens" else BatchConfig(examples=4096)
weights = None if kind == "unweighted" else [0.6, 0.3, 0.1]
plan = Plan.build(stores, weights=weights, batch=batch, capacity=8192, seed=1, epochs=1, cache=folder / "steps")
built = time.perf_counter()
with Loader(plan, 0, 1) as loader:
    first = next(loader)
done = time.perf_counter()
peak = max(anonymous(), before)

def best(call):
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)

far = plan.steps - 1 if kind == "tokens" else 1_000_000
result = {
    "rows": sum(map(len, stores)), "steps": plan.steps, "examples_of_the_first_step": first.totals.examples,
    "import_seconds": imported - started, "plan_seconds": built - imported, "first_batch_seconds": done - built,
    "stores_to_first_batch_seconds": done - imported, "memory_beyond_mapped_files": peak - before,
    "refs_ms_of_step": {str(far): 1000 * best(lambda: plan.refs(far))},
}
if kind == "weighted":
    result["one_of_1024_ranks_ms"] = 1000 * best(lambda: plan.rank_rows(1000, 517, 1024))
print(json.dumps(result))
"""


def write(folder: Path, rows: int, seed: int) -> None:
    """A store of short rows."""
    random = np.random.default_rng(seed)
    with Writer(folder) as writer:
        for start in range(0, rows, AT_ONCE):
            lengths = random.integers(2, 7, min(AT_ONCE, rows - start))
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            ids = np.arange(offsets[-1], dtype=np.int32) % 1000
            writer.append(Tokens(ids, np.ones(len(ids), np.float32), offsets))
        writer.publish({"identity": f"rows {rows}, seed {seed}"})


def measured(folder: Path, kind: str) -> dict[str, Any]:
    """The figures of a fresh process; the middle one of three, which also has compiled code and warm pages."""
    command = [sys.executable, "-c", MEASURED, str(folder), kind]
    found = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    return dict(sorted(found, key=lambda one: float(one["stores_to_first_batch_seconds"]))[1])


def main() -> None:
    """Write the stores, measure, print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=100_000_000)
    options.add_argument("--folder", type=Path, help="keep the stores there, and use them where they are there")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.folder or Path(scratch)
        started = time.perf_counter()
        for number, share in enumerate(SHARES):
            if not (folder / f"s{number}").exists():
                write(folder / f"s{number}", round(chosen.rows * share), number)
        result: dict[str, Any] = {"writing_seconds": time.perf_counter() - started}
        result |= {kind: measured(folder, kind) for kind in ("weighted", "unweighted")}
        for path in (folder / "steps").glob("*"):
            path.unlink()
        command = [sys.executable, "-c", MEASURED, str(folder), "tokens"]
        result["tokens_first"] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        result["tokens_later"] = measured(folder, "tokens")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "plan_scale.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
