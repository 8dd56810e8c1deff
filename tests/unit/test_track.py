"""Trackers: the lines of metrics.jsonl, the console, and that a failing tracker does not end a run."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrowtune.errors import ConfigError
from arrowtune.track import open_trackers
from arrowtune.track.composite import Composite
from arrowtune.track.config import TrackerConfig
from arrowtune.track.console import compact, duration
from arrowtune.track.jsonl import cut_after
from arrowtune.types import EvalStats, StepStats


def stats(step: int, loss: float = 1.5) -> StepStats:
    return StepStats(
        step=step,
        loss=loss,
        loss_weight=300.0,
        grad_norm=0.25,
        lr=1e-5,
        tokens=1000,
        trained_tokens=300,
        examples=8,
        padding=24,
        seconds=0.5,
        batch_digest="ab12",
        epoch=step / 10,
        per_source={"house": 5, "tulu": 3},
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def run(folder: Path, name: str, steps: range, *, total: int, resume: int = 0) -> None:
    tracker = open_trackers([TrackerConfig.model_validate({"name": name})], folder, total, resume)
    for step in steps:
        tracker.train(stats(step))
    tracker.close()


def test_train_eval_and_event_lines_carry_what_is_promised(tmp_path: Path) -> None:
    tracker = open_trackers([TrackerConfig(name="jsonl")], tmp_path, 10, 0)
    tracker.event(0, "start", run_dir=tmp_path, count=np.int64(3))
    tracker.train(stats(1))
    tracker.evaluated(EvalStats("holdout", 1, 2.5, 400, 0.25))
    tracker.close()
    start, train, evaluated = lines(tmp_path)
    assert all(isinstance(line.pop("time"), float) for line in (start, train, evaluated))
    assert start == {"kind": "event", "step": 0, "event": "start", "run_dir": str(tmp_path), "count": 3}
    assert train == {
        "kind": "train",
        "step": 1,
        "loss": 1.5,
        "loss_weight": 300.0,
        "grad_norm": 0.25,
        "lr": 1e-5,
        "tokens": 1000,
        "trained_tokens": 300,
        "examples": 8,
        "padding": 24,
        "seconds": 0.5,
        "tokens_per_second": 2000.0,
        "tokens_per_second_per_device": 2000.0,
        "devices": 1,
        "flops": 0.0,
        "mfu": None,
        "batch_digest": "ab12",
        "epoch": 0.1,
        "per_source": {"house": 5, "tulu": 3},
    }
    assert evaluated == {"kind": "eval", "step": 1, "name": "holdout", "loss": 2.5, "trained_tokens": 400, "seconds": 0.25}


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(tmp_path: Path, loss: float) -> None:
    tracker = open_trackers([TrackerConfig(name="jsonl")], tmp_path, 10, 0)
    tracker.train(stats(1, loss))
    tracker.event(1, "warning", values=[loss, np.float32(loss)])
    tracker.close()
    train, event = lines(tmp_path)
    assert train["loss"] is None
    assert event["values"] == [None, None]


def test_a_name_that_is_not_utf8_is_still_json(tmp_path: Path) -> None:
    tracker = open_trackers([TrackerConfig(name="jsonl")], tmp_path, 10, 0)
    tracker.event(1, "export", path="caf\udce9 ünïcode")
    tracker.close()
    assert lines(tmp_path)[0]["path"] == "caf\udce9 ünïcode"


def test_resuming_cuts_later_lines_and_a_torn_tail(tmp_path: Path) -> None:
    run(tmp_path, "jsonl", range(1, 8), total=10)
    before = lines(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 4, "los')
    run(tmp_path, "jsonl", range(5, 11), total=10, resume=4)
    after = lines(tmp_path)
    assert [line["step"] for line in after] == list(range(1, 11))
    assert after[:4] == before[:4]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_whole_last_line_that_lost_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}')
    cut_after(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_nothing_to_cut_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    run(tmp_path, "jsonl", range(1, 5), total=4)
    path = tmp_path / "metrics.jsonl"
    before = path.stat()
    run(tmp_path, "jsonl", range(0), total=4, resume=4)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_fresh_start_begins_a_fresh_file(tmp_path: Path) -> None:
    run(tmp_path, "jsonl", range(1, 5), total=10)
    run(tmp_path, "jsonl", range(1, 3), total=10)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_a_folder_that_cannot_be_written_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl cannot be written"):
        open_trackers([TrackerConfig(name="jsonl")], tmp_path / "file", 10, 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_once_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        full = Composite({"jsonl": FullDisk()})
        for step in range(1, 5):
            full.train(stats(step))
        full.close()
    assert [record.getMessage().count("the tracker jsonl failed") for record in caplog.records] == [1]


class FullDisk:
    """A tracker on a device without room."""

    def __init__(self) -> None:
        self.file = open("/dev/full", "w", buffering=1)  # noqa: SIM115

    def train(self, stats: StepStats) -> None:
        self.file.write("line\n")

    def evaluated(self, stats: EvalStats) -> None:
        self.file.write("line\n")

    def event(self, step: int, event: str, **fields: Any) -> None:
        self.file.write("line\n")

    def close(self) -> None:
        self.file.close()


def test_no_trackers_keep_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = open_trackers([], tmp_path, 10, 0)
    tracker.train(stats(1))
    tracker.event(1, "end")
    tracker.close()
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_the_console_prints_each_of_few_steps_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "console", range(1, 21), total=20)
    out, err = capsys.readouterr()
    printed = err.splitlines()
    assert out == ""
    assert [line.split("  loss")[0] for line in printed] == [f"step {step:>2}/20" for step in range(1, 21)]
    assert "loss   1.5000" in printed[0]
    assert "2.00k tokens/s" in printed[0]
    assert "2.3% padding" in printed[0]
    assert "\x1b" not in err


def test_the_console_is_not_flooded_and_never_leaves_out_the_last_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "console", range(1, 9_951), total=10_000)
    steps = [int(line.split()[1].split("/")[0]) for line in capsys.readouterr().err.splitlines()]
    assert steps == [*range(1, 21), *range(100, 9_901, 100), 9_950]


def test_the_console_shows_events_and_evaluations_literally(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = open_trackers([TrackerConfig(name="console")], tmp_path, 200, 0)
    tracker.event(0, "checkpoint", path="[bold]/a/very/long/path" + "/x" * 100)
    tracker.evaluated(EvalStats("holdout", 10, 1.25, 12_345, 3.0))
    tracker.close()
    first, second = capsys.readouterr().err.splitlines()
    assert first == "step   0/200  checkpoint: path [bold]/a/very/long/path" + "/x" * 100
    assert second == "step  10/200  eval holdout: loss 1.2500  over 12.3k trained tokens  in 3.0s"


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end(tmp_path: Path) -> None:
    code = """
from pathlib import Path
from arrowtune.track import open_trackers
from arrowtune.track.config import TrackerConfig
from arrowtune.types import StepStats
tracker = open_trackers([TrackerConfig(name="console")], Path("."), 3, 0)
for step in (1, 2, 3):
    tracker.train(StepStats(step, 1.5, 1.0, 0.1, 1e-5, 100, 50, 2, 0, 0.1, "ab", step / 3, {}))
tracker.close()
"""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    result = subprocess.run(
        [sys.executable, "-c", code], stderr=theirs, stdout=subprocess.PIPE, env=environment, cwd=tmp_path, check=True
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)
    text = shown.decode()
    assert result.stdout == b""
    assert [f"step {step}/3" in text for step in (1, 2, 3)] == [True] * 3
    assert "3/3" in text
    # The cursor is shown again, and the line of the bar is erased.
    assert "\x1b[?25h" in text
    assert text.rstrip().endswith("\x1b[2K")


def test_short_forms() -> None:
    assert [compact(count) for count in (0, 950, 1_000, 12_345, 123_456, 4_560_000)] == [
        "0",
        "950",
        "1.00k",
        "12.3k",
        "123k",
        "4.56M",
    ]
    assert [duration(span) for span in (3.21, 65, 7_620, 273_600)] == ["3.2s", "1m 05s", "2h 07m", "3d 04h"]
