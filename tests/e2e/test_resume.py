"""A run that is stopped and continued, in a new process and on other ranks, is the run that was never stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FAST = "strategy.name=reference"
EXAMPLES = Path(__file__).parents[2] / "examples"

RUN = """
name: resume
model: {path: tiny}
data:
  train: [{path: DATA/train/chats.jsonl, name: chats}]
  max_length: 512
  workers: 1
batch: {examples: 16, micro_tokens: 1024}
optimizer: {lr: 3e-3}
train: {steps: 12}
checkpoint: {every: 5}
export: {at_end: false}
track: [jsonl]
"""


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    path = folder / "run.yaml"
    path.write_text(RUN.replace("DATA", str(EXAMPLES / "data")))
    return path


def start(run_file: Path, name: str, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "arrowtune", "train", str(run_file)]
    settings = [f"output_dir={run_file.parent / name}", f"data.cache_dir={run_file.parent / 'cache'}", *overrides]
    return subprocess.Popen([*command, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train(run_file: Path, name: str, *overrides: str, code: int = 0) -> Path:
    process = start(run_file, name, *overrides)
    _, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    return run_file.parent / name


def train_lines(run: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


@pytest.fixture(scope="module")
def undisturbed(run_file: Path) -> list[dict[str, object]]:
    return train_lines(train(run_file, "undisturbed"))


def assert_same_run(lines: list[dict[str, object]], undisturbed: list[dict[str, object]], *, norm: float = 1e-5) -> None:
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["batch_digest"] for line in lines] == [line["batch_digest"] for line in undisturbed]
    for key, tolerance in (("loss", 1e-5), ("lr", 1e-5), ("loss_weight", 1e-5), ("grad_norm", norm)):
        assert [line[key] for line in lines] == pytest.approx([line[key] for line in undisturbed], rel=tolerance), key


@pytest.mark.parametrize("ranks", [1, 2])
def test_B68_stopped_after_7_of_12_steps_and_continued(run_file: Path, undisturbed: list[dict[str, object]], ranks: int) -> None:
    run = train(run_file, f"stopped-{ranks}", "train.max_steps=7")
    assert len(train_lines(run)) == 7
    train(run_file, f"stopped-{ranks}", f"launch.devices_per_node={ranks}")
    # Two ranks add gradients in another order; Adam divides by small moments and carries the last bits on.
    assert_same_run(train_lines(run), undisturbed, norm=1e-5 if ranks == 1 else 1e-4)


def test_sigterm_saves_and_exits_143_and_the_same_command_continues(run_file: Path, undisturbed: list[dict[str, object]]) -> None:
    run = run_file.parent / "terminated"
    process = start(run_file, "terminated", "checkpoint.every=0")
    metrics = run / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count('"train"') >= 2):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    if process.returncode == 0:
        pytest.fail("the run ended before the signal reached it")
    assert process.returncode == 143, err
    assert "step-" in err
    assert "continues" in err
    train(run_file, "terminated", "checkpoint.every=0")
    assert_same_run(train_lines(run), undisturbed)


def test_a_finished_run_says_so_and_changes_nothing(run_file: Path) -> None:
    run = train(run_file, "finished", "train.steps=2", FAST)
    files = {path for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
    assert {"metrics.jsonl", "resolved.json", "end.json"} <= {path.name for path in before}
    process = start(run_file, run.name, "train.steps=2", FAST)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "2 of 2: everything the run asks for was done already, nothing was changed" in out
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files} == before
    assert {path for path in run.rglob("*") if path.is_file() and path.name != ".lock"} == set(before)
    train(run_file, run.name, "train.steps=3", FAST)
    assert [line["step"] for line in train_lines(run)] == [1, 2, 3]


def test_another_plan_is_refused_with_the_difference(run_file: Path) -> None:
    train(run_file, "other", "train.steps=2", FAST)
    process = start(run_file, "other", "batch.examples=8", FAST)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 5
    assert "batch.examples was 16 and is now 8" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("lost", ["progress", "plan"])
def test_B69_a_checkpoint_that_does_not_say_where_it_stands_in_the_data_is_refused(run_file: Path, lost: str) -> None:
    run = train(run_file, f"lost-{lost}", FAST, "train.max_steps=2")
    marker = run / "checkpoints" / "step-00000002" / "complete.json"
    told = json.loads(marker.read_text())
    del told["state"][lost]
    marker.write_text(json.dumps(told))
    process = start(run_file, f"lost-{lost}", FAST)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 5
    assert f"does not say where in the data it stands: it has no {lost}" in err
    assert "Traceback" not in err


def test_a_run_goes_on_with_another_plan_where_that_is_allowed(run_file: Path) -> None:
    run = train(run_file, "new-plan", FAST, "train.max_steps=5")
    seen = sum(int(str(line["tokens"])) for line in train_lines(run))
    refused = start(run_file, "new-plan", FAST, "batch.examples=8", "train.steps=24")
    assert "--allow-new-plan" in refused.communicate(timeout=300)[1]
    train(run_file, "new-plan", FAST, "batch.examples=8", "train.steps=24", "train.max_steps=8", "--allow-new-plan")
    [event] = [line for line in events(run) if line["event"] == "new_plan"]
    # Half as many examples a step in the same order: ten steps of the new plan are the five that were done.
    assert (event["step"], event["step_of_plan"], event["tokens"]) == (5, 10, seen)
    assert event["changes"] == "batch.examples was 16 and is now 8"
    # The change is made once: from here on the run continues as any other.
    train(run_file, "new-plan", FAST, "batch.examples=8", "train.steps=24")
    assert [line["step"] for line in train_lines(run)] == list(range(1, 20))
    whole = train_lines(train(run_file, "as-if", FAST, "batch.examples=8", "train.steps=24"))
    assert [line["batch_digest"] for line in train_lines(run)[5:]] == [line["batch_digest"] for line in whole[10:]]
    before = (run / "metrics.jsonl").read_bytes()
    train(run_file, "new-plan", FAST, "batch.examples=8", "train.steps=24")
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_new_plan_with_nothing_left_is_refused(run_file: Path) -> None:
    train(run_file, "no-plan", FAST, "train.max_steps=8")
    refused = start(run_file, "no-plan", FAST, "batch.examples=8", "--allow-new-plan")
    assert "the 12 steps of the new plan have no more than that" in refused.communicate(timeout=300)[1]
    assert refused.returncode == 5


def test_batches_of_tokens_resume_on_other_ranks(run_file: Path) -> None:
    sizes = ["batch.examples=null", "batch.tokens=2000"]
    whole = train_lines(train(run_file, "tokens", *sizes))
    assert len(whole) == 12
    assert all(int(str(line["tokens"])) <= 2000 for line in whole)
    train(run_file, "tokens-stopped", *sizes, "train.max_steps=7")
    run = train(run_file, "tokens-stopped", *sizes, "launch.devices_per_node=2")
    assert_same_run(train_lines(run), whole, norm=1e-4)


def events(run: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "event"]
