"""Ranks as real processes: results and errors travel, a dead rank is reported, no rank outlives its launcher."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arrowtune.errors import NonFiniteLoss, WorkerLost
from arrowtune.launch.local import launch

TESTS = Path(__file__).parents[1]
ENTRIES = "support.rank_entries"


@pytest.fixture(autouse=True)
def ranks_can_import_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def test_one_device_runs_in_this_process() -> None:
    assert launch(f"{ENTRIES}:echo", {"pid": os.getpid()}, devices=1)["pid"] == os.getpid()


def test_the_result_of_rank_0_comes_back_and_the_cores_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    result = launch(f"{ENTRIES}:echo", {"a": [1]}, devices=2, logs=tmp_path)
    assert result == {"a": [1], "rank": "0", "world": "2", "threads": max(1, len(os.sched_getaffinity(0)) // 2)}
    assert "rank 0 was here" in (tmp_path / "rank-0.log").read_text()
    assert "rank 1 was here" in (tmp_path / "rank-1.log").read_text()


def test_ranks_can_form_a_process_group_from_their_environment() -> None:
    assert launch(f"{ENTRIES}:all_reduce", {"plus": 0.5}, devices=2) == 2.0


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        f"from arrowtune.launch.local import launch\nprint(launch('{ENTRIES}:all_reduce', {{'plus': 0}}, devices=2))\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=90, check=False)
    assert (run.stdout, run.stderr) == ("1.0\n", "")


def test_an_error_raised_in_a_rank_comes_back_as_that_error_though_another_rank_hangs(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss, match="step 7 is NaN") as caught:
        launch(f"{ENTRIES}:fail_on_purpose", {}, devices=2, logs=tmp_path)
    assert caught.value.hint == "lower optimizer.lr"
    assert caught.value.exit_code == 4


def test_an_unforeseen_exception_names_its_rank_and_its_log(tmp_path: Path) -> None:
    with pytest.raises(WorkerLost, match="rank 1 failed: KeyError: 'lm_head'") as caught:
        launch(f"{ENTRIES}:crash", {}, devices=2, logs=tmp_path)
    log = tmp_path / "rank-1.log"
    assert str(log) in caught.value.hint
    assert 'raise KeyError("lm_head")' in log.read_text()


def test_a_killed_rank_is_the_reported_cause_not_the_crash_it_leaves_behind(tmp_path: Path) -> None:
    with pytest.raises(WorkerLost, match="rank 1 was killed by SIGKILL; its last line was: allocating the opt") as caught:
        launch(f"{ENTRIES}:die", {}, devices=2, logs=tmp_path)
    assert "memory" in caught.value.hint


def test_no_rank_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    process, pids = _start_waiting_ranks(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    _until(lambda: not any(_alive(pid) for pid in pids), "a rank outlived its launcher")
    assert not list(tmp_path.glob("saved-*"))


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_launcher_lets_every_rank_save_once(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    process, pids = _start_waiting_ranks(tmp_path)
    process.send_signal(signum)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert output == "Interrupted: stopped after step 3; the same command continues from it\n"
    assert errors == ""
    saved = {path.name: path.read_text() for path in tmp_path.glob("saved-*")}
    assert saved == {"saved-0": f"[{signum:d}]", "saved-1": f"[{signum:d}]"}
    assert not any(_alive(pid) for pid in pids)


def test_a_signal_before_the_ranks_have_started_ends_the_run(tmp_path: Path) -> None:
    process = _start("wait_for_signal", {"folder": str(tmp_path)})
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    _until(lambda: len(children.read_text().split()) >= 2, "no rank was started")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert output.startswith("Interrupted: stopped")


def test_B49_ranks_of_an_outer_torchrun_wait_for_rank_0_and_share_what_it_made() -> None:
    run = _torchrun("follow_then_reduce")
    lines = sorted(line.split(":", 1)[1].split() for line in run.stdout.splitlines() if line.startswith("shared:"))
    assert run.returncode == 0, run.stderr
    assert [(rank, total) for rank, _, total in lines] == [("0", "2.0"), ("1", "2.0")]
    assert lines[0][1] == lines[1][1]


def test_B49_every_rank_learns_why_rank_0_failed() -> None:
    run = _torchrun("follow_into_an_error")
    failed = sorted(line for line in run.stdout.splitlines() if line.startswith("failed:"))
    assert failed == [f"failed: {rank} SourceError there is no file data/chats.jsonl" for rank in (0, 1)]


def test_B49_without_an_agent_the_first_rank_hosts_the_store_and_its_death_is_noticed() -> None:
    port = _free_port()
    ranks = [_start_rank("follow_a_dead_leader", rank, port) for rank in (0, 1)]
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert outputs[0] == ""
    assert outputs[1].startswith("failed: 1 ")


def test_B49_without_an_agent_the_process_group_joins_the_same_store() -> None:
    port = _free_port()
    ranks = [_start_rank("follow_then_reduce", rank, port) for rank in (0, 1)]
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert all(output.split()[-1] == "2.0" for output, _ in outputs)


def _start(entry: str, payload: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", ENTRIES, entry, json.dumps(payload), "2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _start_waiting_ranks(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    process = _start("wait_for_signal", {"folder": str(folder)})
    _until(lambda: len(list(folder.glob("pid-?"))) == 2, "the ranks did not start")
    return process, [int(path.read_text()) for path in folder.glob("pid-?")]


def _torchrun(entry: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", ENTRIES, entry]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def _start_rank(entry: str, rank: int, port: int) -> subprocess.Popen[str]:
    env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", ENTRIES, entry]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _until(true: Callable[[], bool], complaint: str) -> None:
    for _ in range(1200):
        if true():
            return
        time.sleep(0.05)
    pytest.fail(complaint)
