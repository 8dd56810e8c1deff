"""The text of a run file: YAML in, plain values out. What they mean is `config`'s to say; this imports next to nothing."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from arrowtune.errors import ConfigError, Problem


def read_tree(path: Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Read a run file as plain values and apply `key=value` overrides.

    Raises:
        ConfigError: The file cannot be read, or an override cannot be applied.
    """
    tree = _read_yaml(path)
    problems = [problem for item in overrides if (problem := _override(tree, item))]
    if problems:
        raise ConfigError("the command line has faults", problems=problems)
    return tree


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no run file {path}", hint="see examples/ for one to start from") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the run file {path} cannot be read: {error}") from None
    try:
        tree = _yaml(text)
    except YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_yaml_fault(error)}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must hold a mapping of sections, not a {type(tree).__name__}")
    return tree


def _yaml(text: str) -> Any:
    # The safe loader builds plain dicts and lists; ruamel reads YAML 1.2, so 1e-5 is a float and `no` a string.
    return YAML(typ="safe", pure=True).load(io.StringIO(text))


def _yaml_fault(error: YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{problem} at line {mark.line + 1}, column {mark.column + 1}" if mark else str(problem)


def _override(tree: dict[str, Any], item: str) -> Problem | None:
    key, sep, text = item.partition("=")
    if not sep or not key:
        return Problem(item, "an override is KEY=VALUE, such as batch.examples=64")
    try:
        value = _yaml(text) if text else None
    except YAMLError as error:
        return Problem(key, f"the value is not valid YAML: {_yaml_fault(error)}")
    *parents, last = key.split(".")
    node: Any = tree
    for depth, part in enumerate(parents):
        node = _child(node, part)
        if node is None:
            return Problem(key, f"{'.'.join(parents[: depth + 1])} cannot hold keys")
    return _assign(node, last, value, key)


def _child(node: Any, part: str) -> Any:
    if isinstance(node, list):
        return node[int(part)] if part.isdigit() and int(part) < len(node) and isinstance(node[int(part)], dict | list) else None
    if node.get(part) is None:
        node[part] = {}
    return node[part] if isinstance(node[part], dict | list) else None


def _assign(node: Any, last: str, value: Any, key: str) -> Problem | None:
    if isinstance(node, dict):
        node[last] = value
        return None
    if last.isdigit() and int(last) < len(node):
        node[int(last)] = value
        return None
    return Problem(key, f"the list has {len(node)} entries")
