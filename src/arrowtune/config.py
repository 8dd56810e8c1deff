"""The run file: loading, overriding, checking, dumping.

`SFTConfig` composes the sections that live beside their readers. It says what the user chose; what follows from it
on a given machine is `resolve.resolve()`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.data.config import DataConfig, TokenizerConfig
from arrowtune.errors import ConfigError, Problem
from arrowtune.launch.config import LaunchConfig
from arrowtune.plan.config import BatchConfig
from arrowtune.runfile import read_tree
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
        return cls.parse(read_tree(Path(path), overrides), where=str(path))

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
