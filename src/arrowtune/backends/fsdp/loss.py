"""The loss of one micro-batch: a weighted sum, never a mean."""

from __future__ import annotations

import inspect

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from arrowtune.types import Batch


def takes_logits_to_keep(model: PreTrainedModel) -> bool:
    """Whether the model's forward can leave out positions before its output layer."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def weighted_loss_sum(model: PreTrainedModel, batch: Batch, device: torch.device, *, select: bool) -> torch.Tensor:
    """Sum of weighted token losses, float32.

    The output layer sees only positions that have a target with weight: most of a prompt never reaches it. A micro-batch
    without any runs one position with weight 0, so that every rank enters every sharded unit equally often.

    Args:
        model: Called as it is, with packed rows: positions restart with every document, and there is neither a mask nor
            a cache (either would let documents see each other).
        batch: One micro-batch.
        device: Where the model is.
        select: Whether the forward takes `logits_to_keep`.
    """
    weights = torch.from_numpy(batch.loss_weights)
    kept = weights.nonzero().squeeze(1)
    if not len(kept):
        kept = torch.zeros(1, dtype=torch.int64)
    weights = weights[kept].to(device, non_blocking=True)
    targets = torch.from_numpy(batch.targets)[kept].to(device, non_blocking=True)
    kept = kept.to(device, non_blocking=True)
    logits = packed_logits(model, batch, device, kept if select else None)
    if not select:
        logits = logits[kept]
    return (cross_entropy(logits.float(), targets, reduction="none") * weights).sum()


def packed_logits(model: PreTrainedModel, batch: Batch, device: torch.device, kept: torch.Tensor | None = None) -> torch.Tensor:
    """Logits [positions, vocabulary] of a packed row, at all positions or at those of `kept`."""
    options = {} if kept is None else {"logits_to_keep": kept}
    output = model(
        input_ids=torch.from_numpy(batch.input_ids).to(device, non_blocking=True)[None],
        position_ids=torch.from_numpy(batch.position_ids).to(device, non_blocking=True)[None],
        use_cache=False,
        **options,
    )
    logits: torch.Tensor = output.logits[0]
    return logits
