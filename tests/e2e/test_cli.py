"""The command line itself: quick, quiet where it should be, results on stdout and nothing else there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import arrowtune

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "transformers", "datasets", "pyarrow", "numba", "numpy")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["train", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    program = f"""
import sys
sys.argv = ["arrowtune", *{arguments!r}]
from arrowtune.cli import run
code = run()
loaded = sorted({{name.partition(".")[0] for name in sys.modules}} & set({HEAVY!r}))
print("code", code, "loaded", loaded)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == f"code {0 if arguments else 2} loaded []"


def test_the_version_and_the_verbs_are_told() -> None:
    assert arrowtune("--version").stdout.startswith("arrowtune ")
    told = arrowtune("--help").stdout
    for verb in ("train", "prepare", "check", "show", "eval", "export", "cache"):
        assert f" {verb} " in told


def test_import_arrowtune_loads_nothing_heavy() -> None:
    program = f"import sys, arrowtune; print(sorted(set(sys.modules) & set({HEAVY!r})))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian", "run.yaml"], "trian"),
        (["train"], "RUN"),
        (["train", "run.yaml", "--json=3"], "json"),
        (["show", "run.yaml", "--rows", "0"], "rows"),
        (["eval", "run.yaml"], "checkpoint"),
        (["export", "a", "b", "--dtype", "int3"], "int3"),
    ],
)
def test_a_wrong_command_line_exits_2_and_says_what_is_wrong(arguments: list[str], says: str) -> None:
    result = arrowtune(*arguments)
    assert result.returncode == 2
    assert says in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_a_bug_is_called_a_bug_and_shows_its_traceback() -> None:
    program = """
import sys
from arrowtune import cli
@cli._verb
def explode() -> str:
    raise KeyError("lm_head")
sys.argv = ["arrowtune", "explode"]
sys.exit(cli.run())
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    first, *rest = result.stderr.splitlines()
    assert first.startswith("error: this is a bug")
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "KeyError: 'lm_head'"


def test_what_a_library_prints_does_not_reach_stdout() -> None:
    program = """
import os, subprocess, sys
from arrowtune import cli
@cli._verb
def noisy() -> dict:
    print("from python")
    os.write(1, b"from native code\\n")
    subprocess.run(["echo", "from a child"])
    return {"answer": 42}
sys.argv = ["arrowtune", "noisy"]
sys.exit(cli.run())
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.stdout == '{"answer": 42}\n'
    assert sorted(result.stderr.splitlines()) == ["from a child", "from native code", "from python"]


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_unwinds_what_is_open_and_becomes_the_exit_code(tmp_path: Path, name: str, code: int) -> None:
    program = f"""
import os, signal, sys, time
from pathlib import Path
from arrowtune import cli
@cli._verb
def wait() -> None:
    try:
        os.kill(os.getpid(), signal.{name})
        time.sleep(60)
    finally:
        Path({str(tmp_path / "closed")!r}).touch()
sys.argv = ["arrowtune", "wait"]
sys.exit(cli.run())
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == code
    assert result.stderr.startswith(f"stopped by {name}")
    assert "Traceback" not in result.stderr
    assert (tmp_path / "closed").exists()


def test_a_reader_that_goes_away_is_no_error() -> None:
    program = """
import sys
from arrowtune import cli
@cli._verb
def long() -> str:
    return "line\\n" * 1_000_000
sys.argv = ["arrowtune", "long"]
sys.exit(cli.run())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_run_file_may_come_through_a_pipe(tmp_path: Path) -> None:
    run = {
        "model": {"path": "tiny"},
        "data": {"train": [{"path": str(ROOT / "examples/data/train/chats.jsonl")}], "cache_dir": str(tmp_path / "cache")},
    }
    command = [sys.executable, "-m", "arrowtune", "prepare", "/dev/stdin", "--json"]
    done = subprocess.run(command, input=json.dumps(run), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stores"][0]["rows"] > 0
