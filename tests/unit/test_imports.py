"""What a command loads: nothing heavy before there is something heavy to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("datasets", "numba", "pandas", "ray", "torch", "transformers")
REPORT = f"import json, sys; print(json.dumps([name for name in {HEAVY} if name in sys.modules]), file=sys.stderr)"
COMMAND = "import sys; sys.argv = ['arrowtune', *{words}]; from arrowtune.cli import run; code = run(); {report}; sys.exit(code)"


def loaded(code: str) -> list[str]:
    """The heavy packages that are loaded after `code` has run in a fresh process."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr
    names: list[str] = json.loads(result.stderr.splitlines()[-1])
    return names


@pytest.mark.parametrize("module", ["arrowtune", "arrowtune.cli", "arrowtune.config", "arrowtune.types"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    assert loaded(f"import {module}; {REPORT}") == []


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"]], ids=" ".join)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    assert loaded(COMMAND.format(words=words, report=REPORT)) == []


@pytest.mark.parametrize("verb", ["check", "prepare"])
def test_checking_and_preparing_load_no_model_library(verb: str) -> None:
    words = [verb, "examples/tiny.yaml", "data.workers=1"]
    # The plan that `check` makes is compiled where numba is there.
    assert set(loaded(COMMAND.format(words=words, report=REPORT))) <= {"numba"}
