"""The nouns of arrowtune: what flows along the line from a source to an optimizer step.

Everything here is frozen and holds no behaviour beyond a property. Left of the store the nouns speak of text
(`Record`, `Conversation`, `Skip`); right of it they speak of numbers (`Ref`, `Row`, `Batch`, `StepStats`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Record: TypeAlias = Mapping[str, Any]
"""A raw row exactly as `json.loads` (or the Parquet reader) gives it."""

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Origin:
    """The address of a raw row, for errors and for tracing an example back to its source.

    Attributes:
        file: The file or object the row came from, as the source names it.
        row: 0-based row within the file.
        line: 1-based physical line for line-oriented files, else None.
    """

    file: str
    row: int
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line is not None else f"{self.file} row {self.row}"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: `system`, `user`, `assistant`, `tool`, or any role that the template knows.
        content: Text, a list of parts as the source wrote them, or None.
        tool_calls: The calls of an assistant turn, as the source wrote them, or None.
        reasoning: The thinking that precedes the content, or None.
        extra: Every other field of the turn, passed to the template untouched.
        weight: The loss weight of the turn's tokens; None lets the policy (`data.train_on`) decide, 0 is context.
    """

    role: str
    content: str | Sequence[Mapping[str, Any]] | None = None
    tool_calls: Sequence[Any] | None = None
    reasoning: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a renderer sees: the turns, the tools they may call, and where they came from."""

    messages: tuple[Message, ...]
    origin: Origin
    tools: Sequence[Any] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Completion:
    """A prompt and the text that must follow it, encoded as two pieces as at inference; only the second is trained."""

    prompt: str
    completion: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Document:
    """A text that is trained from its first token to the end of text; a long one becomes several examples."""

    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Skip:
    """A row that was not used. Counted by reason in the manifest and shown; never a bare None.

    Attributes:
        origin: The row.
        reason: A short stable code such as `no_trained_tokens` (see `arrowtune.data.reasons`).
        detail: One clause for a person, without the row's text.
    """

    origin: Origin
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """One tokenised row.

    Attributes:
        input_ids: int32[n].
        loss_weights: float32 or uint8 [n]. `loss_weights[t]` weighs the prediction of `input_ids[t]`; 0 is context,
            and position 0 never counts.
        origin: The raw row, or None where the example was made in memory.
    """

    input_ids: IntArray
    loss_weights: npt.NDArray[Any]
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A raw row that holds ids already.

    Attributes:
        input_ids: int32[n].
        loss_weights: float32[n], one for every id.
        origin: The raw row.
    """

    input_ids: IntArray
    loss_weights: FloatArray
    origin: Origin


Item: TypeAlias = Conversation | Completion | Document | Tokenized
"""What a raw row holds: something to render, or ids already."""


class Ref(NamedTuple):
    """The address of an example: which store, which row of it."""

    store: int
    row: int


Row: TypeAlias = npt.NDArray[np.int64]
"""The examples that share one packed micro-batch row: indices into the refs of their step, in packed order."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: whole examples laid end to end, shifted once, here.

    Attributes:
        input_ids: int64[t].
        targets: int64[t]; `targets[p]` is the token that position p must predict. The last position of every document
            holds 0 with weight 0: no target ever crosses a document.
        loss_weights: float32[t]; the weight of `targets[p]`, 0 where there is nothing to learn.
        position_ids: int64[t]; restarts at 0 with every document.
        cu_seqlens: int32[documents + 1]; document d is `[cu_seqlens[d], cu_seqlens[d + 1])`.
        padding: How many of the t positions are alignment padding (they form documents of their own, weight 0).
    """

    input_ids: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    loss_weights: npt.NDArray[np.float32]
    position_ids: npt.NDArray[np.int64]
    cu_seqlens: npt.NDArray[np.int32]
    padding: int = 0

    @property
    def tokens(self) -> int:
        """Real positions of the micro-batch, padding left out."""
        return len(self.input_ids) - self.padding


@dataclass(frozen=True, slots=True)
class StepTotals:
    """What every rank knows of a global batch without reading a token of it.

    Attributes:
        examples, tokens, trained_tokens: Sizes of the global batch.
        loss_weight: Sum of loss weights, the denominator of the loss.
        padding: Positions computed for nothing over all ranks: alignment, and rows of ranks with nothing left.
        per_source: Examples by name of the source.
        digest: Hash of the refs in order; the same for every number of ranks and packing.
    """

    examples: int
    tokens: int
    trained_tokens: int
    loss_weight: float
    padding: int
    per_source: Mapping[str, int]
    digest: str


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """What one rank needs for an optimizer step.

    Attributes:
        step: 0-based number of the step.
        batches: This rank's micro-batches; every rank has as many.
        totals: The global batch, the same on every rank.
    """

    step: int
    batches: Sequence[Batch]
    totals: StepTotals


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one optimizer step did, summed over all ranks.

    Attributes:
        step: 1-based number of the step that was just finished.
        loss: Weighted loss sum over the global batch divided by `loss_weight`, in nats.
        loss_weight: The denominator: sum of loss weights over the global batch.
        grad_norm: L2 norm of the whole gradient before clipping.
        lr: The learning rate of the step.
        tokens, trained_tokens, examples: Sizes of the global batch.
        padding: Positions computed for nothing (alignment and empty micro-steps), over all ranks.
        seconds: Wall time of the step on rank 0.
        batch_digest: Hash of the global batch's refs in order; the same for every world size and packing.
        epoch: Fraction of epochs done after the step.
        per_source: Examples of the step by source name.
        devices: Ranks that took part.
        flops: Floating-point operations that the model needs for the step: its matrices and its attention, forward and
            backward, nothing that is computed twice; 0 where they are not counted.
        mfu: Those of a second, as a part of what the devices can do in bfloat16; None where that is not known.
    """

    step: int
    loss: float
    loss_weight: float
    grad_norm: float
    lr: float
    tokens: int
    trained_tokens: int
    examples: int
    padding: int
    seconds: float
    batch_digest: str
    epoch: float
    per_source: Mapping[str, int] = field(default_factory=dict)
    devices: int = 1
    flops: float = 0.0
    mfu: float | None = None

    @property
    def tokens_per_second_per_device(self) -> float:
        """Real tokens of the global batch per second and device."""
        return self.tokens_per_second / self.devices

    @property
    def tokens_per_second(self) -> float:
        """Real tokens of the global batch per second of the step."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class EvalStats:
    """The exact token-weighted mean loss of one named evaluation set.

    Attributes:
        name: The set.
        step: The optimizer step after which it was measured.
        loss: Sum of weighted token losses divided by the sum of weights, in nats.
        trained_tokens: Tokens with weight.
        seconds: Wall time on rank 0.
    """

    name: str
    step: int
    loss: float
    trained_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """All the trainer state there is outside the backend: the position in the data is `step`."""

    step: int = 0
    tokens: int = 0
    trained_tokens: int = 0
