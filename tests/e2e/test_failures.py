"""Every failure a user can cause: one clear sentence with the place and what to do, its exit code, no traceback, nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.cli import arrowtune

RUN = """
name: failing
model: {path: tiny}
data:
  train: [{path: chats.jsonl}]
  max_length: 256
  workers: 1
  cache_dir: cache
batch: {examples: 4}
train: {steps: 1}
track: [jsonl]
"""

GOOD = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}


def write(folder: Path, name: str, rows: Sequence[object]) -> None:
    """One line per row; a string is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("".join(f"{line}\n" for line in lines))


def nothing(folder: Path) -> None:
    """The run as it is."""


def rows(*values: object) -> Callable[[Path], None]:
    """The training file holds these rows."""
    return lambda folder: write(folder, "chats.jsonl", values)


def text(name: str, content: str) -> Callable[[Path], None]:
    """One more file."""
    return lambda folder: (folder / name).write_text(content) and None


def empty_folder(folder: Path) -> None:
    """A folder without files."""
    (folder / "chats").mkdir()


def checkpoint_without_its_sign(folder: Path) -> None:
    """A checkpoint whose writer was killed: everything but complete.json."""
    step = folder / "runs/failing/checkpoints/step-00000001"
    step.mkdir(parents=True)
    (step / "state.json").write_text("{}")


@dataclass(frozen=True)
class Failure:
    """What the user does wrong, and what the answer must hold.

    Attributes:
        says: Words of stderr: the place, the reason, the remedy.
        code: The exit code.
        arguments: The command line after the program's name.
        spoil: Changes the good run in its folder.
    """

    says: Sequence[str]
    code: int
    arguments: Sequence[str]
    spoil: Callable[[Path], None] = nothing


TRAIN = ("train", "run.yaml")
PREPARE = ("prepare", "run.yaml")
TEMPLATE = "tokenizer.chat_template=my.jinja"
REFUSES = "{{ raise_exception('no') }}"

FAILURES = {
    "missing run file": Failure(["there is no run file", "nope.yaml"], 2, ("train", "nope.yaml")),
    "run file is a folder": Failure(["cannot be read"], 2, ("train", ".")),
    "run file is not yaml": Failure(["run.yaml", "line 1"], 2, TRAIN, text("run.yaml", "data: [1")),
    "misspelt key": Failure(["data.max_lenght", "did you mean max_length?"], 2, (*TRAIN, "data.max_lenght=8")),
    "misspelt section": Failure(["optimiser", "did you mean optimizer?"], 2, (*TRAIN, "optimiser.lr=1e-5")),
    "wrong type": Failure(["batch.examples", "many"], 2, (*TRAIN, "batch.examples=many")),
    "all faults at once": Failure(["batch.examples", "optimizer.lr"], 2, (*TRAIN, "batch.examples=0", "optimizer.lr=-1")),
    "override without a value": Failure(["KEY=VALUE"], 2, (*TRAIN, "batch.examples")),
    "no training source": Failure(["data.train", "path"], 2, (*TRAIN, "data.train=[]")),
    "two sources of one name": Failure(["chats", "name"], 2, (*TRAIN, "data.train=[chats.jsonl, ./chats.jsonl]")),
    "micro_tokens too small": Failure(["batch.micro_tokens", "256"], 2, (*TRAIN, "batch.micro_tokens=64")),
    "missing data file": Failure(["missing.jsonl"], 3, (*TRAIN, "data.train=missing.jsonl")),
    "empty folder": Failure(["chats"], 3, (*TRAIN, "data.train=chats"), empty_folder),
    "unsupported file": Failure(["chats.docx"], 3, (*TRAIN, "data.train=chats.docx"), text("chats.docx", "x")),
    "no rows": Failure(["chats.jsonl"], 3, TRAIN, rows()),
    "no rows to train": Failure(["no_assistant_turn"], 3, TRAIN, rows({"messages": [{"role": "user", "content": "hi"}]})),
    "unreadable row": Failure(["chats.jsonl:2", "max_bad_rows"], 3, TRAIN, rows(GOOD, '{"messages": [', GOOD)),
    "row of another format": Failure(["chats.jsonl:3"], 3, TRAIN, rows(GOOD, GOOD, {"messages": "hello"}, GOOD)),
    "unknown format": Failure(
        ["source 'chats'", "question", "messages reads"], 3, TRAIN, rows({"question": "2+2?", "reply": "4"})
    ),
    "named format does not fit": Failure(["chats.jsonl"], 3, (*TRAIN, "data.train=[{path: chats.jsonl, format: alpaca}]")),
    "missing template file": Failure(["missing.jinja"], 2, (*TRAIN, "tokenizer.chat_template=missing.jinja")),
    "template with a fault": Failure(
        ["template is not valid", "line 1", "tokenizer.chat_template"],
        3,
        (*TRAIN, TEMPLATE),
        text("my.jinja", "{% for %}"),
    ),
    "template that refuses all": Failure(["template"], 3, (*TRAIN, TEMPLATE), text("my.jinja", REFUSES)),
    "unknown model": Failure(["model.path", "models/nope"], 2, (*TRAIN, "model.path=models/nope")),
    "too few eval sets": Failure(
        ["data.eval"], 2, ("eval", "run.yaml", "--checkpoint", "runs/failing/checkpoints/step-00000001")
    ),
    "no such checkpoint": Failure(["step-7"], 5, ("export", "runs/failing/checkpoints/step-7", "out")),
    "named checkpoint is torn": Failure(
        ["step-00000001", "complete"],
        5,
        (*TRAIN, "checkpoint.resume=runs/failing/checkpoints/step-00000001"),
        checkpoint_without_its_sign,
    ),
    "run folder is a file": Failure(["run folder", "taken"], 2, (*TRAIN, "output_dir=taken/run"), text("taken", "x")),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good run: `run.yaml` and its one data file."""
    (tmp_path / "run.yaml").write_text(RUN)
    write(tmp_path, "chats.jsonl", [GOOD] * 8)
    return tmp_path


def assert_told(result: subprocess.CompletedProcess[str], code: int, says: Sequence[str]) -> None:
    """One error, no traceback, nothing on stdout."""
    told = result.stderr
    assert "Traceback" not in told
    assert "this is a bug" not in told
    assert result.returncode == code, told
    assert result.stdout == ""
    errors = [line for line in told.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, told
    for word in says:
        assert word in told


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_told_in_one_sentence(folder: Path, name: str) -> None:
    failure = FAILURES[name]
    failure.spoil(folder)
    assert_told(arrowtune(*failure.arguments, cwd=folder), failure.code, failure.says)


def test_debug_shows_where_an_error_came_from(folder: Path) -> None:
    result = arrowtune("train", "nope.yaml", cwd=folder, ARROWTUNE_DEBUG="1")
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert "error: there is no run file nope.yaml" in result.stderr


HOLD = """
import sys, time
from pathlib import Path
from arrowtune.runfolder import RunFolder
with RunFolder(Path("runs/failing")).lock():
    print("held", flush=True)
    time.sleep(120)
"""


def test_a_locked_run_folder(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], cwd=folder, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        try:
            assert_told(arrowtune(*TRAIN, cwd=folder), 2, ["runs/failing", f"process {holder.pid}"])
        finally:
            holder.kill()


def full_disk(folder: Path, command: Sequence[str], size: str = "64k") -> subprocess.CompletedProcess[str]:
    """Run a command whose cache is a file system of its own with room for nothing."""
    inside = f"mount -t tmpfs -o size={size} tmpfs cache && exec {sys.executable} -m arrowtune {' '.join(command)}"
    wrapped = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside]
    return subprocess.run(wrapped, cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=dict(os.environ))


@pytest.fixture(scope="module")
def can_mount() -> None:
    probe = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no user mount a tmpfs")


@pytest.mark.usefixtures("can_mount")
def test_a_full_disk_while_preparing(folder: Path) -> None:
    long = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "four " * 200}]}
    write(folder, "chats.jsonl", [long] * 2000)
    (folder / "cache").mkdir()
    assert_told(full_disk(folder, PREPARE), 3, ["cache", "space"])
    again = arrowtune(*PREPARE, "--json", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["stores"][0]["rows"] == 2000


def test_a_store_of_another_version_is_made_again_and_never_trained_on(folder: Path) -> None:
    first = json.loads(arrowtune(*PREPARE, "--json", cwd=folder).stdout)["stores"][0]
    manifest = Path(folder, first["path"], "manifest.json")
    changed = json.loads(manifest.read_text())
    changed["version"] = 0
    manifest.write_text(json.dumps(changed))
    again = arrowtune(*PREPARE, "--json", cwd=folder)
    assert again.returncode in (0, 3)
    assert "Traceback" not in again.stderr
    if again.returncode == 3:
        assert_told(again, 3, [first["path"], "version"])
    else:
        assert json.loads(again.stdout)["stores"][0]["reused"] is False
