"""A small run around the reference backend, which trains in milliseconds, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from arrowtune import Callback, SFTConfig, SFTTrainer, TrainResult
from arrowtune.training.callbacks import Run
from arrowtune.types import EvalStats, StepStats
from support.assets import EXAMPLES


def config(folder: Path, **sections: Any) -> SFTConfig:
    """A run in `folder/run`; `sections` go before the defaults here."""
    tree: dict[str, Any] = {
        "name": "trainer",
        "output_dir": str(folder / "run"),
        "data": {
            "train": [str(EXAMPLES / "data/train/tasks.parquet"), str(EXAMPLES / "data/train/completions.jsonl.zst")],
            "eval": [{"path": str(EXAMPLES / "data/heldout/chats.jsonl"), "name": "held out"}],
            "max_length": 512,
            "workers": 1,
        },
        "batch": {"examples": 64},
        "optimizer": {"lr": 0.05},
        "strategy": {"name": "reference"},
        "export": {"at_end": False},
        "track": ["jsonl"],
    }
    return SFTConfig.parse(tree | sections)


def lines(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """What `metrics.jsonl` says."""
    found = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if kind is None or line["kind"] == kind]


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    """The events of one name."""
    return [line for line in lines(folder, "event") if line["event"] == event]


def train(configuration: SFTConfig, *callbacks: Callback) -> TrainResult:
    """Set up, train, shut down."""
    with SFTTrainer(configuration, callbacks) as trainer:
        return trainer.train()


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of the run, its bytes and when it was written; the lock aside."""
    files = (path for path in (folder / "run").rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


class Diary(Callback):
    """Writes down what happens, in order."""

    def __init__(self, stop_at: int = 0) -> None:
        self.entries: list[str] = []
        self._stop_at = stop_at

    def on_start(self, run: Run) -> None:
        self.entries.append(f"start {run.progress.step}")

    def on_step(self, run: Run, stats: StepStats) -> None:
        self.entries.append(f"step {stats.step}")
        if stats.step == self._stop_at:
            run.stop()

    def on_evaluated(self, run: Run, stats: EvalStats) -> None:
        self.entries.append(f"evaluated {stats.step}")

    def on_saved(self, run: Run, checkpoint: Path) -> None:
        self.entries.append(f"saved {checkpoint.name}")

    def on_end(self, run: Run) -> None:
        self.entries.append(f"end {run.progress.step}")
