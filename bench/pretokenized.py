"""A pretokenized Arrow file of 200 M tokens: how fast it is checked at its first start, and how soon it is there later.

The file lies in the page cache: it was just written. One process, one core (`process_seconds` is its processor time). The later
start is `prepare_sources` in a fresh process, without the imports. Beside it, what `datasets` takes to look through all ids of
the same file once, in batches, which is what a trainer that checks them would do.
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
import pyarrow as pa

from arrowtune.data.store_batch import to_arrow
from real_chats import ROOT, tokenizer_folder

RESULTS = ROOT / "bench" / "results"
VOCABULARY = 151_000
MEAN = 600

PROGRAM = """
import json, sys, time
from pathlib import Path
from arrowtune.data.config import DataConfig, SourceConfig
from arrowtune.data.prepare import PrepareJob, prepare_sources
from arrowtune.data.render import RenderSpec
from arrowtune.data.store import Store
from arrowtune.data.tokenizer import read_tokenizer

spec = RenderSpec(read_tokenizer(Path(sys.argv[3])), max_length=1 << 20)
started, used = time.perf_counter(), time.process_time()
job = PrepareJob(SourceConfig(path=sys.argv[1]), "ids", "train")
[store] = prepare_sources([job], spec, DataConfig(), cache=Path(sys.argv[2]), workers=2)
opened = Store(store.path)
print(json.dumps({
    "seconds": time.perf_counter() - started, "process_seconds": time.process_time() - used,
    "tokens": store.tokens, "rows": store.rows, "reused": store.reused, "linked": opened.linked,
}))
"""


def write(path: Path, tokens: int) -> None:
    """Rows of log-normal length; ids as int32, masks as uint8."""
    rng = np.random.default_rng(1)
    schema = pa.schema({"input_ids": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.uint8())})
    left = tokens
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        while left > 0:
            lengths = np.clip(rng.lognormal(np.log(MEAN) - 0.5, 1.0, 4000).astype(np.int64), 2, 16_384)
            offsets = to_arrow(np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths).astype(np.int32)]))
            total = int(lengths.sum())
            ids = rng.integers(0, VOCABULARY, total, dtype=np.int32)
            mask = (np.arange(total) % 100 >= 50).astype(np.uint8)
            columns = [pa.ListArray.from_arrays(offsets, to_arrow(values)) for values in (ids, mask)]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            left -= total


def start(path: Path, cache: Path) -> dict[str, Any]:
    """One start in a fresh process."""
    command = [sys.executable, "-c", PROGRAM, str(path), str(cache), str(tokenizer_folder())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def theirs(path: Path) -> dict[str, Any]:
    """`datasets`: map the file, and look at every id once."""
    from datasets import Dataset

    started = time.perf_counter()
    rows = Dataset.from_file(str(path)) if _is_stream(path) else Dataset(pa.ipc.open_file(pa.memory_map(str(path))).read_all())
    largest = 0
    for batch in rows.with_format("numpy").iter(1000):
        largest = max(largest, max(int(ids.max()) for ids in batch["input_ids"]))
    return {"seconds": time.perf_counter() - started, "largest_id": largest}


def _is_stream(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) != b"ARROW1"


def main() -> None:
    """Measure and print JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tokens", type=float, default=200e6)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        path = folder / "ids.arrow"
        write(path, int(chosen.tokens))
        result: dict[str, Any] = {"first": start(path, folder / "cache")}
        result["later"] = start(path, folder / "cache")
        result["datasets"] = theirs(path)
    first = result["first"]
    result["tokens_per_second_and_core"] = first["tokens"] / max(first["seconds"], first["process_seconds"])
    result["ratio"] = result["datasets"]["seconds"] / first["seconds"]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "pretokenized.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
