"""From what the user chose to what runs: every "auto" and every derived number, each with its reason.

Nothing is flipped silently: the result is printed by `check`, and saved as `resolved.json` in the run folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from arrowtune.config import SFTConfig
from arrowtune.data.config import SourceConfig
from arrowtune.data.folder import cache_folder
from arrowtune.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Derived:
    """A value that was not written in the run file, and why it is what it is."""

    value: Any
    because: str


@dataclass(frozen=True, slots=True)
class NamedSource:
    """A source with its name settled and its role, `train` or `eval`."""

    config: SourceConfig
    name: str
    role: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """A run as it will be carried out.

    Attributes:
        config: What the user wrote.
        sources: Every source, training first.
        derived: Dotted key -> value and reason.
    """

    config: SFTConfig
    sources: tuple[NamedSource, ...]
    derived: dict[str, Derived] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.derived[key].value

    def with_derived(self, **values: Derived) -> Resolved:
        """A copy with more derived values; `train__steps` stands for `train.steps`."""
        named = {key.replace("__", "."): value for key, value in values.items()}
        return Resolved(self.config, self.sources, {**self.derived, **named})

    def train_sources(self) -> list[NamedSource]:
        """The training sources, in the order of the run file."""
        return [source for source in self.sources if source.role == "train"]

    def to_json(self) -> dict[str, Any]:
        """Plain values for `resolved.json` and `check --json`."""
        derived = {key: {"value": item.value, "because": item.because} for key, item in self.derived.items()}
        return {"config": self.config.dump(), "derived": derived}


def resolve(config: SFTConfig, *, devices: int, gpu: bool, for_training: bool = True) -> Resolved:
    """Settle everything that does not need the data.

    Args:
        config: The run.
        devices: Usable devices of this machine: GPUs, or 1 where there is none.
        gpu: Whether those devices are GPUs.
        for_training: Whether a training source is needed.

    Raises:
        ConfigError: With every contradiction between sections.
    """
    sources, problems = _named_sources(config)
    names = {source.name for source in sources if source.role == "train"}
    for index, entry in enumerate(config.data.weight_schedule):
        problems += [
            Problem(
                f"data.weight_schedule[{index}].weights",
                f"there is no train source {name!r}",
                f"known: {', '.join(sorted(names))}",
            )
            for name in entry.weights
            if name not in names
        ]
    if config.model.lora and not config.export.merge_lora and (config.model.init == "random" or config.model.path == "tiny"):
        why = "adapters alone are of no use: the weights they belong to are drawn at random and not written"
        problems.append(Problem("export.merge_lora", why, "leave it true"))
    if for_training and not config.data.train:
        problems.append(Problem("data.train", "there is no training source", "add data.train: [{path: chats.jsonl}]"))
    derived = {
        "output_dir": _output_dir(config),
        "data.cache_dir": Derived(*cache_folder(config.data.cache_dir)),
        "data.workers": _workers(config),
        "batch.micro_tokens": _micro_tokens(config, problems),
        "launch.devices_per_node": _devices(config, devices, gpu, problems),
        "model.dtype": _model_dtype(config),
        "strategy.compute_dtype": Derived(*config.strategy.computes_in(gpu)),
    }
    if problems:
        raise ConfigError("the run cannot be carried out as written", problems=problems)
    return Resolved(config, tuple(sources), derived)


def _named_sources(config: SFTConfig) -> tuple[list[NamedSource], list[Problem]]:
    problems: list[Problem] = []
    named: list[NamedSource] = []
    for role, sources in (("train", config.data.train), ("eval", config.data.eval)):
        taken: dict[str, int] = {}
        for index, source in enumerate(sources):
            name = source.name or base_name(source.path)
            if name in taken:
                first = f"data.{role}[{taken[name]}]"
                problems.append(Problem(f"data.{role}[{index}]", f"is called {name!r} as {first} is", "give one of them a name"))
            taken.setdefault(name, index)
            named.append(NamedSource(source, name, role))
    return named, problems


def base_name(path: str) -> str:
    """The name of a source that has none: the last part of its path, without the suffixes of data files."""
    name = path.rstrip("/").rsplit("/", 1)[-1]
    for suffix in (".gz", ".zst", ".jsonl", ".json", ".parquet", ".arrow"):
        name = name.removesuffix(suffix)
    return name or path


def _output_dir(config: SFTConfig) -> Derived:
    because = "as written" if config.output_dir else "runs/ and the name of the run"
    return Derived(str(config.run_dir), because)


def _workers(config: SFTConfig) -> Derived:
    if config.data.workers:
        return Derived(config.data.workers, "as written")
    return Derived(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, "usable cores")


def _micro_tokens(config: SFTConfig, problems: list[Problem]) -> Derived:
    written, longest = config.batch.micro_tokens, config.data.max_length
    if written is None:
        return Derived(longest, "data.max_length")
    if written < longest:
        problems.append(
            Problem(
                "batch.micro_tokens",
                f"{written} cannot hold an example of data.max_length={longest} tokens",
                f"use at least {longest}",
            )
        )
    return Derived(written, "as written")


def _devices(config: SFTConfig, devices: int, gpu: bool, problems: list[Problem]) -> Derived:
    written = config.launch.devices_per_node
    if written is None:
        return Derived(devices, "all GPUs of this machine" if gpu else "no GPU: one process")
    if gpu and written > devices:
        problems.append(Problem("launch.devices_per_node", f"{written} asked for, {devices} GPUs are here"))
    return Derived(written, "as written")


def _model_dtype(config: SFTConfig) -> Derived:
    if config.model.dtype != "auto":
        return Derived(config.model.dtype, "as written")
    return Derived("float32", "master weights in full precision")
