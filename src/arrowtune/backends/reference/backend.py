"""The reference backend. One process, no torch: it proves a run's data, plan, metrics and resume without a model."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.backends.reference.bigram import Array, Bigram
from arrowtune.errors import CheckpointError, ConfigError, ExportError, NonFiniteLoss
from arrowtune.protocols import StepResult
from arrowtune.types import Batch

_RANK = 16
_STATE = "reference.npz"


class ReferenceBackend:
    """Implements `protocols.Backend`. Make it with `open`."""

    rank = 0
    world_size = 1
    why_not_packed = ""
    notes: Sequence[str] = ()
    peak_flops: float = 0.0

    def __init__(self, vocabulary: int, optimizer: OptimizerConfig, seed: int) -> None:
        self.model_config: Mapping[str, Any] = {}
        self.model = Bigram.random(vocabulary, _RANK, seed)
        self._optimizer = optimizer
        self._moments = [(np.zeros_like(table), np.zeros_like(table)) for table in self.model.arrays()]
        self._updates = 0

    @classmethod
    def open(cls, model: ModelConfig, strategy: StrategyConfig, optimizer: OptimizerConfig, *, seed: int) -> ReferenceBackend:
        """Take the vocabulary's size from the model's `config.json`.

        Raises:
            ConfigError: There are several ranks, or no vocabulary size.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("strategy.name: reference runs in one process", hint="set launch.devices_per_node: 1")
        return cls(_vocabulary(model), optimizer, seed)

    def train_step(self, batches: Sequence[Batch], *, loss_weight: float, lr: float) -> StepResult:
        """See `protocols.Backend.train_step`."""
        gradient = self.model.zeros()
        loss_sum = sum(self.model.loss_sum(batch, gradient, 1 / loss_weight) for batch in batches)
        norm = math.sqrt(sum(float((table**2).sum()) for table in gradient.arrays()))
        if not (math.isfinite(loss_sum) and math.isfinite(norm)):
            raise NonFiniteLoss(f"the loss sum is {loss_sum} and the gradient norm {norm}")
        limit = self._optimizer.max_grad_norm
        self._update(gradient, min(1.0, limit / (norm + 1e-6)) if limit else 1.0, lr)
        return StepResult(loss_sum, norm)

    def eval_loss(self, batches: Iterable[Batch]) -> float:
        """See `protocols.Backend.eval_loss`."""
        return sum(self.model.loss_sum(batch) for batch in batches)

    def save(self, folder: Path) -> list[Path]:
        """See `protocols.Backend.save`."""
        arrays: dict[str, Any] = {"updates": np.array(self._updates), **self._named()}
        np.savez(folder / _STATE, **arrays)
        return [folder / _STATE]

    def load(self, folder: Path) -> None:
        """See `protocols.Backend.load`.

        Raises:
            CheckpointError: The checkpoint is of another backend or vocabulary.
        """
        try:
            with np.load(folder / _STATE, allow_pickle=False) as saved:
                for name, table in self._named().items():
                    table[...] = saved[name]
                self._updates = int(saved["updates"])
        except (OSError, KeyError, ValueError) as error:
            raise CheckpointError(f"{folder} does not fit the reference backend: {error}") from None

    def export(self, folder: Path, dtype: str, *, merge_lora: bool = True) -> None:
        """Refused: there is nothing that `transformers` could load."""
        raise ExportError("the reference backend has no model to export", hint="set export.at_end: false")

    def gather(self, value: Any) -> list[Any]:
        """See `protocols.Backend.gather`."""
        return [value]

    def close(self) -> None:
        """Nothing to give back."""

    def _named(self) -> dict[str, Array]:
        names = ("inputs", "outputs")
        tables = dict(zip(names, self.model.arrays(), strict=True))
        for name, (first, second) in zip(names, self._moments, strict=True):
            tables |= {f"{name}_first": first, f"{name}_second": second}
        return tables

    def _update(self, gradient: Bigram, scale: float, lr: float) -> None:
        """AdamW (Loshchilov and Hutter, 2019)."""
        self._updates += 1
        settings = self._optimizer
        beta1, beta2 = settings.betas
        for table, slope, (first, second) in zip(self.model.arrays(), gradient.arrays(), self._moments, strict=True):
            slope *= scale
            first += (1 - beta1) * (slope - first)
            second += (1 - beta2) * (slope**2 - second)
            mean, spread = first / (1 - beta1**self._updates), second / (1 - beta2**self._updates)
            table *= 1 - lr * settings.weight_decay
            table -= lr * mean / (np.sqrt(spread) + settings.eps)


def _vocabulary(model: ModelConfig) -> int:
    folder = Path(str(files("arrowtune") / "assets" / "tiny")) if model.path == "tiny" else Path(model.path)
    try:
        return int({**json.loads((folder / "config.json").read_text(encoding="utf-8")), **model.config}["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"the reference backend finds no vocab_size in {folder / 'config.json'}") from None
