"""The root of the sharded units: from a batch to its loss, with the output layer inside.

Outside of this module's forward the weights of embeddings and head are sharded, and nobody may touch them.
"""

from __future__ import annotations

import inspect

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from arrowtune.backends.fsdp.attention import documents
from arrowtune.backends.fsdp.heads import head_of, hidden_states, logits_of
from arrowtune.backends.fsdp.linear_loss import Logits, linear_cross_entropy
from arrowtune.types import Batch


class Objective(nn.Module):
    """A model and the loss that it is trained on.

    Args:
        model: Whole or sharded. It is called with packed rows: positions restart with every document, and there is neither
            a mask nor a cache (either would let documents see each other).
        device: Where it is.

    Attributes:
        model: The same.
        fused: How logits come about, where the output layer and the loss are computed together; None where the model's own
            forward makes the logits.
    """

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self.fused: Logits | None = logits_of(model)
        self._device = device
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(self, batch: Batch, *, logits: bool = False) -> torch.Tensor:
        """The sum of weighted token losses, a float32 scalar.

        The output layer sees only positions that have a target with weight: most of a prompt never reaches it. A micro-batch
        without any runs one position with weight 0, so that every rank enters every sharded unit equally often.

        Args:
            batch: One micro-batch.
            logits: Return the logits [positions, vocabulary] of all positions instead.
        """
        with documents(torch.from_numpy(batch.cu_seqlens), self._device):
            return self._logits(batch) if logits else self._loss(batch)

    def _loss(self, batch: Batch) -> torch.Tensor:
        kept, targets, weights = self._trained(batch)
        if self.fused is None:
            return (cross_entropy(self._logits(batch, kept).float(), targets, reduction="none") * weights).sum()
        hidden = hidden_states(self.model, **self._inputs(batch))[kept]
        head = head_of(self.model)
        return linear_cross_entropy(hidden, head.weight, head.bias, targets, weights, self.fused)

    def _trained(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Positions with weight, their targets and weights."""
        weights = torch.from_numpy(batch.loss_weights)
        kept = weights.nonzero().squeeze(1)
        if not len(kept):
            kept = torch.zeros(1, dtype=torch.int64)
        targets = torch.from_numpy(batch.targets)[kept]
        weights = weights[kept]
        return tuple(one.to(self._device, non_blocking=True) for one in (kept, targets, weights))  # type: ignore[return-value]

    def _logits(self, batch: Batch, kept: torch.Tensor | None = None) -> torch.Tensor:
        options = {"logits_to_keep": kept} if self._selects and kept is not None else {}
        logits: torch.Tensor = self.model(**self._inputs(batch), **options).logits[0]
        return logits[kept] if kept is not None and not self._selects else logits

    def _inputs(self, batch: Batch) -> dict[str, torch.Tensor | bool]:
        return {
            "input_ids": torch.from_numpy(batch.input_ids).to(self._device, non_blocking=True)[None],
            "position_ids": torch.from_numpy(batch.position_ids).to(self._device, non_blocking=True)[None],
            "use_cache": False,
        }
