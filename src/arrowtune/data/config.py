"""The `data` and `tokenizer` sections of the run file."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from arrowtune.data.slices import Split
from arrowtune.section import Section

_SAMPLERS = ("random", "sequential", "length_grouped")
FormatName = Literal["auto", "messages", "sharegpt", "alpaca", "prompt_completion", "text", "pretokenized"]


class SourceConfig(Section):
    """One data set: where it is, how it is read, and its share of the mixture."""

    path: str
    """A file, a folder, or a glob of local files; or the id of a data set on the Hugging Face hub."""
    name: str | None = None
    """How the source is called in reports and metrics; the base name of the path when absent."""
    format: FormatName = "auto"
    """The shape of the rows; `auto` looks at the columns of the first rows."""
    split: str | None = None
    """The split of a saved `DatasetDict`, and which of its rows: `train`, `train[:1000]`, `train[10%:20%]`, or `[:1000]` of any
    source. All rows are prepared, once for all slices; `limit` reads less."""
    weight: Annotated[float, Field(gt=0)] | Annotated[str, Field(pattern=r"^size(\^\d+(\.\d+)?)?$")] | None = None
    """Share of the training examples: a number, or `size` or `size^0.5`, a power of how many examples there are. Either every
    train source has one or none has."""
    max_passes: Annotated[float, Field(gt=0)] | None = None
    """Draw each example at most so often, where sources have weights; what the source would get beyond goes to the others."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """Read at most this many rows, in source order."""
    revision: str | None = None
    """Branch, tag or commit of a data set on the hub."""
    subset: str | None = None
    """The configuration of a data set on the hub that has several."""
    sample: Annotated[int, Field(gt=0)] | Annotated[float, Field(gt=0, lt=1)] | None = None
    """Use only so many of the source's examples, or this share of them: always the same ones for the same content. Nothing is
    prepared anew."""
    repeat: Annotated[int, Field(ge=1)] = 1
    """How often each example is there in an epoch. Nothing is prepared anew."""
    columns: dict[str, str | None] = Field(default_factory=dict)
    """Names of the columns that the format reads, where they differ: `{messages: conversation, tools: functions}`; null for a
    column that shall not be read: `{tools: null}`."""
    mask: Literal["loss_mask", "labels", "all"] | None = None
    """Of pretokenized rows: the mask is a column of 0 and 1, of labels in which -100 is context, or every token is trained."""

    @field_validator("split")
    @classmethod
    def _is_a_split(cls, value: str | None) -> str | None:
        if value is not None:
            Split.parse(value)
        return value

    @property
    def rows(self) -> Split:
        """The split and the rows that are asked for."""
        return Split("", "", "") if self.split is None else Split.parse(self.split)

    def reading(self) -> dict[str, str | None]:
        """What a format needs to know of its source: names of columns, and under `mask` where the mask is."""
        return {**self.columns, **({"mask": self.mask} if self.mask else {})}


def _as_source(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | dict | SourceConfig) else value


Source = Annotated[SourceConfig, BeforeValidator(_as_source)]
Sources = Annotated[tuple[Source, ...], BeforeValidator(_as_list), Field(strict=False)]


class TokenizerConfig(Section):
    """The tokenizer and the chat template."""

    path: str | None = None
    """A folder or hub id with `tokenizer.json`; the model's own when absent."""
    chat_template: str | None = None
    """A `.jinja` file, or the template itself; the tokenizer's own when absent."""
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments handed to the template with every row, such as `enable_thinking: false`."""
    date: str | None = None
    """The date (YYYY-MM-DD) that templates which read the clock are given; required for those, so that
    stores do not change by the day."""
    fast: bool = True
    """Use the fast token engine where it gives the same ids as the reference."""


class WeightsUntil(Section):
    """Weights that hold for a part of the run."""

    until: Annotated[int, Field(gt=0)] | None = None
    """The step with which the next entry begins; the last entry has none."""
    weights: dict[str, Annotated[float, Field(ge=0)]]
    """Share of the training examples by name of the source; one that is not named is left out."""


class DataConfig(Section):
    """What is trained on and evaluated, and how rows become examples."""

    train: Sources = ()
    """The training sources."""
    eval: Sources = ()
    """The evaluation sources, each reported under its name."""
    weight_schedule: Annotated[tuple[WeightsUntil, ...], Field(strict=False)] = ()
    """Weights that change by step, in place of a `weight` for each source: `[{until: 1000, weights: {easy: 0.9, hard: 0.1}},
    {weights: {easy: 0.3, hard: 0.7}}]`."""
    exhausted: Literal["repeat", "stop", "error"] = "repeat"
    """What happens when every example of a source has been drawn: it begins again in another order, the run ends there, or a run
    that would come to it is refused. Without weights that is the end of the first epoch."""
    sampler: str = "random"
    """The order of the examples: `random`, `sequential`, `length_grouped` (batches of like length), or a class of one's own,
    `module:Class` or `path/to/file.py:Class`."""
    sampler_options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of a sampler of one's own."""
    max_length: Annotated[int, Field(ge=2)] = 2048
    """The most tokens an example may have."""
    train_on: Literal["all_assistant_messages", "last_assistant_message", "everything"] = "all_assistant_messages"
    """Which turns are trained when a message does not say so itself; `everything` trains all tokens but the first."""
    train_on_reasoning: bool = True
    """Whether the reasoning of a trained turn is trained; false makes it context."""
    train_on_boilerplate: bool = True
    """Whether an empty block of reasoning that the template writes by itself is trained; false makes it context."""
    control_tokens_in_content: Literal["text", "allow", "skip"] = "text"
    """What becomes of content that spells a control token: it stays text, it is encoded as that token, or the row is skipped."""
    overlong: Literal["truncate", "drop", "raise"] = "truncate"
    """What becomes of a row longer than `max_length`; `truncate` splits documents (`format: text`), so that no token is lost."""
    trailing: Literal["trim", "skip"] = "trim"
    """What becomes of messages after the last assistant turn: trimmed, or the row is skipped."""
    max_bad_rows: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The share of malformed rows of a source up to which they are skipped; beyond it, an error."""
    workers: Annotated[int, Field(ge=1)] | None = None
    """Worker processes of `prepare`; the number of usable cores when absent."""
    cache_dir: str | None = None
    """Where stores are kept; `$ARROWTUNE_CACHE`, else `$XDG_CACHE_HOME/arrowtune`, else `~/.cache/arrowtune`."""
    disable_cache: bool = False
    """Keep the stores in the run folder and remove them at the end."""
    force_recache: bool = False
    """Prepare again even where a store exists."""

    @model_validator(mode="after")
    def _everything_is_all(self) -> DataConfig:
        if self.train_on == "everything" and not (self.train_on_reasoning and self.train_on_boilerplate):
            raise ValueError(
                "train_on: everything trains reasoning and boilerplate too; "
                "leave train_on_reasoning and train_on_boilerplate true"
            )
        return self

    @field_validator("sampler")
    @classmethod
    def _is_a_sampler(cls, value: str) -> str:
        if value not in _SAMPLERS and not all(value.rpartition(":")[::2]):
            raise ValueError(f"must be one of {', '.join(_SAMPLERS)}, module:Class or path/to/file.py:Class")
        return value

    @model_validator(mode="after")
    def _order_is_one(self) -> DataConfig:
        weighted = bool(self.weight_schedule) or any(source.weight is not None for source in self.train)
        named = [source for source in self.train if source.max_passes is not None]
        if named and not weighted:
            raise ValueError(f"max_passes of {named[0].name or named[0].path!r} needs weights: without them epochs say it")
        if self.sampler_options and self.sampler in _SAMPLERS:
            raise ValueError(f"sampler {self.sampler} has no sampler_options")
        if self.sampler not in _SAMPLERS and (weighted or self.exhausted != "repeat"):
            raise ValueError("a sampler of one's own decides alone: leave out weights, weight_schedule and exhausted")
        return self

    @model_validator(mode="after")
    def _schedule_is_one(self) -> DataConfig:
        ends = [entry.until for entry in self.weight_schedule]
        if not ends:
            return self
        if ends[-1] is not None or None in ends[:-1]:
            raise ValueError("every entry of weight_schedule but the last has an until")
        if any(a >= b for a, b in pairwise(end for end in ends if end is not None)):
            raise ValueError("the until of weight_schedule must rise from entry to entry")
        if any(source.weight is not None for source in self.train):
            raise ValueError("sources have a weight of their own or a weight_schedule, not both")
        if not all(any(entry.weights.values()) for entry in self.weight_schedule):
            raise ValueError("every entry of weight_schedule must give one source a weight above 0")
        return self

    @model_validator(mode="after")
    def _weights_all_or_none(self) -> DataConfig:
        weighted = [source for source in self.train if source.weight is not None]
        if weighted and len(weighted) != len(self.train):
            bare = next(source for source in self.train if source.weight is None)
            raise ValueError(
                f"train source {bare.name or bare.path!r} has no weight while others have; "
                "give every train source a weight or none"
            )
        return self
