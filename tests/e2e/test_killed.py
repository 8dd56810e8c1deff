"""A run that is killed again and again, in the middle of steps and of saves, is the run that was never killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS, KILLS = 200, 25  # More steps than so many starts get on by.
RUN = {
    "model": {"path": "tiny"},
    "data": {
        "train": [{"path": str(EXAMPLES / "data" / "train" / "chats.jsonl"), "name": "chats"}],
        "max_length": 128,
        "workers": 1,
    },
    "batch": {"examples": 4},
    "train": {"steps": STEPS},
    "checkpoint": {"every": 2, "keep": 2},
    "export": {"at_end": False},
    "track": ["jsonl"],
}


def start(folder: Path, ranks: int) -> subprocess.Popen[bytes]:
    run = folder / "run.yaml"
    settings = {"output_dir": str(folder / "run"), "launch": {"devices_per_node": ranks}}
    run.write_text(json.dumps({**RUN, **settings, "data": {**RUN["data"], "cache_dir": str(folder / "cache")}}))  # type: ignore[dict-item]
    command = [sys.executable, "-m", "arrowtune", "train", str(run)]
    with (folder / "stderr").open("wb") as stderr:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True)


def lines(folder: Path) -> list[dict[str, object]]:
    """The train lines of a run's metrics; the last one may be torn."""
    found, metrics = [], folder / "run" / "metrics.jsonl"
    for line in metrics.read_bytes().splitlines() if metrics.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record["kind"] == "train":
            found.append(record)
    return found


def saving(folder: Path) -> bool:
    """Whether a checkpoint is being written, replaced or removed."""
    checkpoints = folder / "run" / "checkpoints"
    return checkpoints.is_dir() and any(path.name.endswith(".partial") for path in checkpoints.iterdir())


def kill_when(process: subprocess.Popen[bytes], moment: Callable[[], bool]) -> bool:
    """Kill a run and all its processes once it is there; False where it ended before."""
    while not moment():
        if process.poll() is not None:
            return False
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [1, 2])
def test_B71_killed_in_steps_and_in_saves_it_is_the_undisturbed_run(tmp_path: Path, ranks: int) -> None:
    (whole := tmp_path / "whole").mkdir()
    (killed := tmp_path / "killed").mkdir()
    undisturbed = start(whole, ranks)
    assert undisturbed.wait() == 0, (whole / "stderr").read_text()
    expected = {line["step"]: line["batch_digest"] for line in lines(whole)}
    assert sorted(expected) == list(range(1, STEPS + 1))
    chance = random.Random(ranks)
    kills = during_saves = 0
    while kills < KILLS:
        process = start(killed, ranks)
        done = len(lines(killed))
        # Every start gets on by a step at least, or the run would never end.
        target = min(done + chance.randint(1, 3), STEPS - 1)
        in_save = chance.random() < 0.5

        def moment(target: int = target, in_save: bool = in_save) -> bool:
            return len(lines(killed)) > target and (not in_save or saving(killed))

        if not kill_when(process, moment):
            assert process.returncode == 0, (killed / "stderr").read_text()
            break
        kills += 1
        during_saves += saving(killed)
        assert all(expected[line["step"]] == line["batch_digest"] for line in lines(killed))
    last = start(killed, ranks)
    assert last.wait() == 0, (killed / "stderr").read_text()
    found, wanted = lines(killed), lines(whole)
    assert [line["step"] for line in found] == list(range(1, STEPS + 1))
    assert [line["batch_digest"] for line in found] == [line["batch_digest"] for line in wanted]
    assert [line["lr"] for line in found] == [line["lr"] for line in wanted]
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in wanted], rel=1e-6)
    assert kills == KILLS
    assert during_saves
