"""What rendering depends on, what it gives, and what a preview of it shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from arrowtune.data.tokenizer import TokenizerFiles
from arrowtune.fingerprint import digest_bytes
from arrowtune.types import Skip

if TYPE_CHECKING:
    from arrowtune.data.config import DataConfig, TokenizerConfig

_OF_DOCUMENTS = ("tokenizer", "special_tokens", "max_length", "overlong", "control_tokens_in_content", "render_version")

RENDER_VERSION = "2"
"""Raised whenever the same row would give other ids or weights than before."""


@dataclass(frozen=True, slots=True)
class RenderSpec:
    """Everything that decides ids and loss weights. Picklable and small: every worker builds its own `Renderer` from it.

    Attributes:
        files: The tokenizer and the chat template.
        train_on: Which turns are trained when a message does not say so itself; `everything` is all tokens but the first.
        train_on_reasoning: Whether the reasoning of a trained turn is trained, or is context.
        train_on_boilerplate: Whether an empty block of reasoning that the template writes by itself is trained, or is context.
        max_length: The most tokens of an example.
        overlong: What becomes of a longer row: cut at the end, dropped, or an error.
        trailing: What becomes of messages after the last assistant turn.
        control_tokens_in_content: What becomes of content that spells a control token: it stays text, it is encoded as
            that token, or the row is skipped.
        template_kwargs: Arguments of every render.
        date: The day that templates which read the clock are told.
        vocabulary: Ids of pretokenized rows are below this, or below the tokenizer's size where that is larger.
        fast: The fast token engine: yes, no, or None for "where it gives the reference's ids". Not part of the identity.
    """

    files: TokenizerFiles
    train_on: Literal["all_assistant_messages", "last_assistant_message", "everything"] = "all_assistant_messages"
    train_on_reasoning: bool = True
    train_on_boilerplate: bool = True
    max_length: int = 2048
    overlong: Literal["truncate", "drop", "raise"] = "truncate"
    trailing: Literal["trim", "skip"] = "trim"
    control_tokens_in_content: Literal["text", "allow", "skip"] = "text"
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    date: str | None = None
    vocabulary: int = 0
    fast: bool | None = None

    @classmethod
    def of(cls, files: TokenizerFiles, data: DataConfig, tokenizer: TokenizerConfig, vocabulary: int = 0) -> RenderSpec:
        """The specification that a run file asks for; `vocabulary` is the size of the model's embedding, 0 where not known."""
        return cls(
            files=files,
            train_on=data.train_on,
            train_on_reasoning=data.train_on_reasoning,
            train_on_boilerplate=data.train_on_boilerplate,
            max_length=data.max_length,
            overlong=data.overlong,
            trailing=data.trailing,
            control_tokens_in_content=data.control_tokens_in_content,
            template_kwargs=tokenizer.template_kwargs,
            date=tokenizer.date,
            vocabulary=vocabulary,
            fast=None if tokenizer.fast else False,
        )

    @property
    def id_limit(self) -> int:
        """Ids are below this."""
        return max(self.vocabulary, self.files.vocab_size)

    def with_engine(self, fast: bool) -> RenderSpec:
        """The same with the choice of engine made, so that workers need not compare the engines again."""
        return replace(self, fast=fast)

    def identity_of(self, form: str) -> dict[str, str]:
        """As `identity`, of what matters to rows of a format: ids depend on no tokenizer, and documents on no chat template."""
        if form == "pretokenized":
            return {"max_length": str(self.max_length), "overlong": self.overlong, "vocabulary": str(self.id_limit)}
        parts = self.identity()
        return {name: parts[name] for name in _OF_DOCUMENTS} if form == "text" else parts

    def identity(self) -> dict[str, str]:
        """Named digests and values of all that changes ids or weights of rows that are rendered."""
        return {
            **self.files.digests(),
            "template_kwargs": digest_bytes(json.dumps(dict(self.template_kwargs), sort_keys=True, default=str).encode()),
            "date": self.date or "",
            "train_on": self.train_on,
            "train_on_reasoning": str(self.train_on_reasoning).lower(),
            "train_on_boilerplate": str(self.train_on_boilerplate).lower(),
            "max_length": str(self.max_length),
            "overlong": self.overlong,
            "trailing": self.trailing,
            "control_tokens_in_content": self.control_tokens_in_content,
            "render_version": RENDER_VERSION,
        }


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a batch of rows became. Example k is `[offsets[k], offsets[k + 1])` of both buffers.

    Attributes:
        input_ids: int32[t].
        loss_weights: float32[t]; the weight of predicting that token, 0 at the first position of every example.
        offsets: int64[k + 1].
        kept: int64[k]; which of the given rows each example is.
        skips: The rows that became no example.
        counts: How many rows met something worth telling: `rows_with_control_text`, `truncated`, `trimmed`, `straddling`,
            `reference_engine`, `invalid_tool_arguments` (calls, not rows), `repaired_text`, `reasoning_ignored`.
    """

    input_ids: npt.NDArray[np.int32]
    loss_weights: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int64]
    kept: npt.NDArray[np.int64]
    skips: list[Skip]
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Preview:
    """One row as it will be trained, for a person.

    Attributes:
        text: The render.
        spans: (start, end, weight) of the trained stretches, in characters of the text.
        tokens: (text, weight) of every token after truncation.
        skip: Why the row is not used, or None.
    """

    text: str
    spans: list[tuple[int, int, float]]
    tokens: list[tuple[str, float]]
    skip: Skip | None = None
