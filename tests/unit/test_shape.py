"""The shape of the code: small modules, short functions, one home for every public name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for folder in ("src", "tools", "bench") for path in (ROOT / folder).rglob("*.py"))
MODULE_LINES = 400
FUNCTION_LINES = 60


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_and_no_function_is_long(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MODULE_LINES
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions(ast.parse(text))}
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES} == {}


def test_nothing_is_left_to_do() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error")
    marked = [f"{path.name}: {word}" for path in MODULES for word in words if word in path.read_text(encoding="utf-8")]
    assert marked == []


def test_the_public_names_are_a_decision() -> None:
    import arrowtune

    verbs = {"check", "evaluate", "export", "prepare", "train"}
    classes = {"Callback", "Conversation", "EvalStats", "Example", "Message", "SFTConfig", "SFTTrainer", "StepStats", "Store"}
    errors = {"ArrowtuneError", "BackendError", "CheckpointError", "ConfigError", "DataError", "ExportError"}
    assert set(arrowtune.__all__) == verbs | classes | errors | {"TrainResult"}
    for name in arrowtune.__all__:
        assert getattr(arrowtune, name).__doc__, name
    assert set(arrowtune.__all__) <= set(dir(arrowtune))
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        _ = arrowtune.Trainer
