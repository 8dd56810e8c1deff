"""Peak private memory of `arrowtune prepare`: the same rows once and many times, and rows with a very large one among them.

It must not grow with the data, and a row of 64 MB must fit into a gigabyte. Private memory is USS, summed over the command
and all its processes, sampled while it runs. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from real_chats import ROOT, chats, tokenizer_folder, write_chats

RESULTS = ROOT / "bench" / "results"
EVERY = 0.02


def private_bytes(root: psutil.Process) -> int:
    """USS of a process and everything below it, now."""
    total = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            total += process.memory_full_info().uss
        except psutil.Error:
            continue  # It ended between the listing and the look.
    return total


def peak(data: Path, folder: Path, workers: int) -> dict[str, Any]:
    """Prepare a file with a cold cache, and watch."""
    run = folder / "run.yaml"
    section = {
        "train": [{"path": str(data), "format": "messages"}],
        "max_length": 8192,
        "workers": workers,
        "cache_dir": str(folder / f"cache-{data.stem}"),
    }
    run.write_text(json.dumps({"model": {"path": str(tokenizer_folder())}, "data": section}))
    command = [sys.executable, "-m", "arrowtune", "prepare", str(run), "--json"]
    highest = samples = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                highest = max(highest, private_bytes(root))
            except psutil.Error:
                break
            samples += 1
            time.sleep(EVERY)
        told, _ = process.communicate()
    store = json.loads(told)["stores"][0]
    return {
        "bytes": data.stat().st_size,
        "rows": store["rows"],
        "peak_uss": highest,
        "samples": samples,
        "seconds": store["seconds"],
    }


def write_with_large_row(path: Path, size: int, *, ascii_only: bool) -> None:
    """Write 3,000 rows, and in the middle of them one whose answer has `size` bytes: other rows' text, joined."""
    rows = list(islice(chats(), 3000))
    text = "\n".join(message["content"] for row in rows for message in row["messages"])
    if ascii_only:
        text = text.encode("ascii", "ignore").decode()
    data = text.encode()
    answer = (data * (size // len(data) + 1))[:size].decode(errors="ignore").replace("<|", "<")
    rows.insert(1500, {"messages": [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": answer}]})
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    """Measure both sizes and print how they compare."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mb", type=float, default=21, help="megabytes of rows, once")
    options.add_argument("--times", type=int, default=8, help="how many times as many rows the second run has")
    options.add_argument("--row-mb", type=float, default=64, help="megabytes of the large row; 0 leaves it out")
    options.add_argument("--workers", type=int, default=2)
    chosen = options.parse_args()
    result: dict[str, Any] = {"workers": chosen.workers}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, times in (("once", 1), ("more", chosen.times)):
            data = folder / f"{name}.jsonl"
            write_chats(data, int(chosen.mb * 1e6) * times)
            result[name] = peak(data, folder, chosen.workers)
        for kind in ("ascii", "any") if chosen.row_mb else ():
            write_with_large_row(data := folder / f"large-{kind}.jsonl", int(chosen.row_mb * 1e6), ascii_only=kind == "ascii")
            result[f"large_row_{kind}"] = peak(data, folder, chosen.workers)
    result["ratio"] = result["more"]["peak_uss"] / result["once"]["peak_uss"]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "prepare_memory.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
