"""The documents say what is so: generated pages are fresh, links lead somewhere, run files parse, named tests exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from arrowtune.config import SFTConfig

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
pages = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_the_generated_pages_are_fresh() -> None:
    # A process of its own: the sections know their docstrings only where these were asked for first.
    command = [sys.executable, str(ROOT / "tools" / "make_docs.py"), "--check"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "", "run `make docs`"


@pages
def test_links_lead_to_files_and_headings_that_are_there(path: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    for target in targets:
        if not re.match(r"https?:|mailto:", target):
            file, _, heading = target.partition("#")
            page = (path.parent / file).resolve() if file else path
            assert page.exists(), target
            if heading:
                titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
                assert heading in slugs, target


@pages
def test_run_files_and_python_in_the_documents_are_valid(path: Path, tmp_path: Path) -> None:
    for text in blocks(path, "yaml"):
        run = tmp_path / "run.yaml"
        run.write_text(text, encoding="utf-8")
        SFTConfig.load(run)
    for text in blocks(path, "python"):
        ast.parse(text)


@pages
def test_named_tests_exist(path: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", path.read_text(encoding="utf-8")):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text, f"{file}::{name}"


@pages
def test_named_commands_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"(?:^    |`)make ([a-z-]+)", text, flags=re.MULTILINE)) <= made
    verbs = {"train", "prepare", "check", "show", "eval", "export", "cache", "--help"}
    assert set(re.findall(r"(?:^    |`)arrowtune ([a-z-]+)", text, flags=re.MULTILINE)) <= verbs


def test_decisions_are_numbered_once() -> None:
    numbers = [path.name[:4] for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")]
    assert len(set(numbers)) == len(numbers)
