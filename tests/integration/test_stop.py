"""A signal that finds two ranks at different moments ends both, promptly and with its own exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.run import events

TESTS = Path(__file__).parents[1]


def stop(entry: str, payload: dict[str, Any], signum: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
    """Start two ranks, send the launcher a signal once both stand where they are to; its exit code and what it said."""
    folder = Path(payload["folder"])
    command = [sys.executable, "-m", "support.stopped_runs", entry, json.dumps(payload)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    while len(list(folder.glob("ready-*"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signum)
    (folder / "sent").write_text("")
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("places", "signum"),
    [
        (("holds", "sets up"), signal.SIGTERM),
        (("sets up", "holds"), signal.SIGINT),
        (("waits", "sets up"), signal.SIGTERM),
    ],
)
def test_ranks_on_different_sides_of_holding_signals_back_all_end(
    tmp_path: Path, places: tuple[str, str], signum: signal.Signals
) -> None:
    code, out, err = stop("stand", {"folder": str(tmp_path), "places": places}, signum)
    assert (code, err) == (128 + signum, "")
    assert out == f"Interrupted: stopped by {signum.name}; what was finished is kept, and the same command continues\n"


def test_between_steps_both_ranks_save_first(tmp_path: Path) -> None:
    code, out, _ = stop("train", {"folder": str(tmp_path), "moment": "step"})
    assert code == 143
    assert "stopped by SIGTERM after step 2; the checkpoint is" in out
    assert (tmp_path / "run/checkpoints/step-00000002/complete.json").exists()


def test_after_the_last_save_both_ranks_end_at_once(tmp_path: Path) -> None:
    code, out, _ = stop("train", {"folder": str(tmp_path), "moment": "evaluation"})
    assert code == 143
    assert out == "Interrupted: stopped by SIGTERM; what was finished is kept, and the same command continues\n"
    assert (tmp_path / "run/checkpoints/step-00000003/complete.json").exists()
    assert events(tmp_path, "end") == []
    assert not (tmp_path / "run/export").exists()
