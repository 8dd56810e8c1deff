"""The seams: what a backend, a packed data set and a tracker must promise. A protocol is born with its second implementation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from arrowtune.types import Batch, EvalStats, IntArray, StepStats


@dataclass(frozen=True, slots=True)
class Tokens:
    """Examples laid end to end: example k is `[offsets[k], offsets[k + 1])` of both buffers.

    Attributes:
        input_ids: int32[t].
        loss_weights: float32[t], as `Example.loss_weights`.
        offsets: int64[k + 1].
    """

    input_ids: npt.NDArray[np.int32]
    loss_weights: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int64]


class Examples(Protocol):
    """Random access to tokenised examples; a `Store`, or arrays in memory in tests.

    Attributes:
        name: What the examples are called in reports.
        identity: A digest of everything that decides their content.
        lengths: int32[n], tokens of each example.
        trained_tokens: int32[n], positions with weight after the shift (position 0 never counts).
        loss_weight_sums: float64[n], sum of loss weights after the shift.
    """

    @property
    def name(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def lengths(self) -> npt.NDArray[np.int32]: ...
    @property
    def trained_tokens(self) -> npt.NDArray[np.int32]: ...
    @property
    def loss_weight_sums(self) -> npt.NDArray[np.float64]: ...

    def __len__(self) -> int: ...

    def fetch(self, rows: IntArray) -> Tokens:
        """The examples of `rows`, in that order, as fresh arrays."""
        ...


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a backend reports of one optimizer step; the same numbers on every rank."""

    loss_sum: float
    grad_norm: float
    flops: float = 0.0
    """Floating-point operations that the model needs for the step, over all ranks; 0 where they are not counted."""


class Backend(Protocol):
    """A model, its optimizer, and the devices they live on. Every rank calls every method, in the same order.

    Attributes:
        rank, world_size: This rank among all.
        why_not_packed: Empty where documents may share a row; else one clause on why they must not.
        notes: What else the user should know of how the model is computed, a sentence each.
        model_config: The model's configuration as it is, plain values.
        peak_flops: Of one device, a second; 0 where it is not known.
    """

    rank: int
    world_size: int
    why_not_packed: str
    notes: Sequence[str]
    model_config: Mapping[str, Any]
    peak_flops: float

    def train_step(self, batches: Sequence[Batch], *, loss_weight: float, lr: float) -> StepResult:
        """Accumulate the gradient of `sum(weighted losses) / loss_weight` over `batches` of all ranks, clip, update.

        Every rank passes the same number of batches. The loss of the result is the sum over all ranks, not yet divided.
        """
        ...

    def eval_loss(self, batches: Iterable[Batch]) -> float:
        """The weighted loss sum over the batches of all ranks, without gradients."""
        ...

    def save(self, folder: Path) -> Sequence[Path]:
        """Write model, optimizer and random state into `folder`, sharded.

        Returns:
            The files in `folder` that this rank wrote.
        """
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, at any world size."""
        ...

    def export(self, folder: Path, dtype: str, *, merge_lora: bool = True) -> None:
        """Write what `transformers` loads.

        Args:
            folder: Where.
            dtype: Of the weights, as `export.dtype`.
            merge_lora: Add adapters to the weights; else they are written alone. Nothing else without adapters.
        """
        ...

    def gather(self, value: Any) -> list[Any]:
        """A small picklable value of every rank, in rank order, on every rank."""
        ...

    def close(self) -> None:
        """Give the devices back."""
        ...


class Tracker(Protocol):
    """A place where metrics go. Only rank 0 has trackers."""

    def train(self, stats: StepStats) -> None:
        """One optimizer step."""
        ...

    def evaluated(self, stats: EvalStats) -> None:
        """One evaluation set."""
        ...

    def event(self, step: int, event: str, **fields: Any) -> None:
        """Something else: `start`, `resume`, `checkpoint`, `export`, `end`, `stopped`, `note`, `warning`, `error`."""
        ...

    def close(self) -> None:
        """Flush and let go."""
        ...
