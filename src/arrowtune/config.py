"""The run file: loading, overriding, checking, dumping.

`SFTConfig` composes the sections that live beside their readers. It says what the user chose; what follows from it
on a given machine is `resolve.resolve()`.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.data.config import DataConfig, TokenizerConfig
from arrowtune.errors import ConfigError, Problem
from arrowtune.launch.config import LaunchConfig
from arrowtune.plan.config import BatchConfig
from arrowtune.section import Section
from arrowtune.track.config import TrackerConfig, Trackers
from arrowtune.training.config import CheckpointConfig, EvalConfig, ExportConfig, ScheduleConfig, TrainConfig


class SFTConfig(Section):
    """A supervised fine-tuning run, as the user wrote it."""

    name: str = "run"
    """The run's name; its folder is `runs/NAME` unless `output_dir` says otherwise."""
    output_dir: str | None = None
    """Where metrics, checkpoints and the export go."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    batch: BatchConfig = Field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    export: ExportConfig = Field(default_factory=ExportConfig)
    strategy: StrategyConfig = Field(default_factory=StrategyConfig)
    launch: LaunchConfig = Field(default_factory=LaunchConfig)
    track: Trackers = (TrackerConfig(name="console"), TrackerConfig(name="jsonl"))

    @property
    def run_dir(self) -> Path:
        """The run folder."""
        return Path(self.output_dir or f"runs/{self.name}")

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> SFTConfig:
        """Read a run file and apply `key=value` overrides.

        Args:
            path: A YAML 1.2 file.
            overrides: Dotted assignments such as `batch.examples=64`; the right side is read as YAML.

        Raises:
            ConfigError: The file cannot be read or has faults; all of them are listed with their paths.
        """
        tree = _read_yaml(Path(path))
        problems = [problem for item in overrides if (problem := _override(tree, item))]
        if problems:
            raise ConfigError("the command line has faults", problems=problems)
        return cls.parse(tree, where=str(path))

    @classmethod
    def parse(cls, tree: Mapping[str, Any], *, where: str = "the run configuration") -> SFTConfig:
        """Check a tree of plain values.

        Raises:
            ConfigError: With one `Problem` for every fault.
        """
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            problems = tuple(_problem(cls, item) for item in error.errors(include_url=False))
            count = "1 fault" if len(problems) == 1 else f"{len(problems)} faults"
            raise ConfigError(f"{where} has {count}", problems=problems) from None

    def dump(self) -> dict[str, Any]:
        """The whole tree as plain JSON values, defaults included; `SFTConfig.parse` reads it back."""
        return self.model_dump(mode="json")


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


def _problem(root: type[BaseModel], item: Any) -> Problem:
    location = tuple(item["loc"])
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    if item["type"] == "extra_forbidden":
        return Problem(path, "unknown key", _did_you_mean(root, location))
    message = str(item["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    value = item.get("input")
    if isinstance(value, str | int | float | bool) and item["type"] != "missing":
        message = f"{message}, not {value!r}"
    return Problem(path, message)


def _did_you_mean(root: type[BaseModel], location: tuple[Any, ...]) -> str:
    names = list(_section_at(root, location[:-1]).model_fields)
    close = difflib.get_close_matches(str(location[-1]), names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"


def _section_at(root: type[BaseModel], location: Iterable[Any]) -> type[BaseModel]:
    section = root
    for part in location:
        if isinstance(part, int):
            continue
        section = _model_in(section.model_fields[part].annotation) or section
    return section


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The section class inside an annotation such as `tuple[Annotated[SourceConfig, ...], ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()) or ():
        if found := _model_in(inner):
            return found
    return None
