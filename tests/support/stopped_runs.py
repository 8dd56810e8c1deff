"""Ranks that stand at known moments when a signal comes: `python -m support.stopped_runs ENTRY PAYLOAD`.

Each rank writes `ready-RANK` into the folder of the payload once it stands where it is to stand.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from arrowtune.training.callbacks import Callback, Run
from arrowtune.types import EvalStats, StepStats


def ready(folder: Path) -> None:
    """Tell the test."""
    (folder / f"ready-{os.environ['RANK']}").write_text("")


def stand(payload: dict[str, Any]) -> None:
    """Every rank at a place of its own: still setting up, waiting for the others, or holding signals back."""
    import torch.distributed as dist

    from arrowtune.training.signals import StopFlag

    folder, place = Path(payload["folder"]), payload["places"][int(os.environ["RANK"])]
    dist.init_process_group("gloo")
    dist.barrier()
    if place == "holds":
        StopFlag().hold()
    ready(folder)
    if place != "sets up":
        dist.barrier()
    while True:
        try:
            time.sleep(600)
        except Exception:  # noqa: BLE001 - as a library that tries what it may not need
            continue


def train(payload: dict[str, Any]) -> Any:
    """A run of two ranks that stop to be looked at."""
    from arrowtune.trainer import SFTTrainer
    from support.run import config

    folder = Path(payload["folder"])
    run = config(folder, strategy={"name": "fsdp"}, train={"steps": 3}, export={"at_end": True}, batch={"examples": 8})
    with SFTTrainer(run, [At(folder, payload["moment"])]) as trainer:
        return trainer.train()


class At(Callback):
    """Holds a rank at a moment: until the test has sent its signal, or for ever."""

    def __init__(self, folder: Path, moment: str) -> None:
        self._folder, self._moment = folder, moment

    def on_step(self, run: Run, stats: StepStats) -> None:
        if self._moment == "step" and stats.step == 2:
            ready(self._folder)
            while not (self._folder / "sent").exists():
                time.sleep(0.02)

    def on_evaluated(self, run: Run, stats: EvalStats) -> None:
        if self._moment == "evaluation":
            ready(self._folder)
            if os.environ["RANK"] == "0":
                time.sleep(600)


def main() -> None:
    """Launch an entry on two ranks."""
    from arrowtune.errors import ArrowtuneError
    from arrowtune.launch.local import launch

    try:
        launch(f"support.stopped_runs:{sys.argv[1]}", json.loads(sys.argv[2]), devices=2)
    except ArrowtuneError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
