"""What is measured of a model before it is trained: whether documents that share a row stay strangers, and the fused loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from arrowtune.backends.fsdp.attention import UnknownAttention
from arrowtune.backends.fsdp.objective import Objective
from arrowtune.types import Batch, IntArray

_LENGTH = 12
# Of the logits' spread, or of the loss. What is right differs by rounding alone, which low precision makes visible.
_TOLERANCE = 1e-3
_LOW_PRECISION = 5e-2


@torch.no_grad()
def documents_leak(objective: Objective, vocabulary: int, compute: torch.dtype = torch.float32) -> bool:
    """Pack two documents and see whether the second notices: its logits alone, behind the first, and behind another one.

    Attention is kept apart by positions that restart; recurrent and hybrid models carry a state across them, and a model
    that ignores the positions it is given counts on through the row.

    Args:
        objective: Sharded or whole; every rank calls it.
        vocabulary: Of the model.
        compute: The dtype of activations.
    """
    training = objective.training
    objective.eval()
    first, other, second = _documents(vocabulary)
    alone = objective(_batch([second]), logits=True).float()
    behind = [objective(_batch([before, second]), logits=True)[_LENGTH:].float() for before in (first, other)]
    objective.train(training)
    tolerance = _tolerance(compute) * float(alone.std())
    return max(float((logits - alone).abs().max()) for logits in behind) > tolerance


@torch.no_grad()
def attention_differs(objective: Objective, vocabulary: int, compute: torch.dtype = torch.float32) -> bool:
    """Whether a document has other logits when its model attends document by document than with the attention it brings.

    Every rank calls it. The model attends as before afterwards.
    """
    training, model = objective.training, objective.model
    chosen = model.config._attn_implementation
    objective.eval()
    batch = _batch(_documents(vocabulary)[:1])
    try:
        ours = objective(batch, logits=True).float()
        model.set_attn_implementation("eager")
        own = objective(batch, logits=True).float()
    except UnknownAttention:
        return True
    finally:
        model.set_attn_implementation(chosen)
        objective.train(training)
    return not float((ours - own).abs().max()) <= _tolerance(compute) * float(own.std())


@torch.no_grad()
def fused_loss_differs(objective: Objective, vocabulary: int, compute: torch.dtype = torch.float32) -> bool:
    """Whether the loss of two documents by the fused path is another than by the model's own forward.

    Every rank calls it. The objective computes as before afterwards.
    """
    training, fused = objective.training, objective.fused
    if fused is None:
        return False
    objective.eval()
    batches = [_batch([document]) for document in _documents(vocabulary)[:2]]
    ours = [float(objective(batch)) for batch in batches]
    objective.fused = None
    own = [float(objective(batch)) for batch in batches]
    objective.fused = fused
    objective.train(training)
    # `not <=` because a NaN is no agreement.
    return any(not abs(a - b) <= _tolerance(compute) * abs(b) for a, b in zip(ours, own, strict=True))


def _tolerance(compute: torch.dtype) -> float:
    return _TOLERANCE if compute == torch.float32 else _LOW_PRECISION


def _documents(vocabulary: int) -> list[IntArray]:
    return [np.arange(_LENGTH) * step % vocabulary for step in (7, 11, 13)]


def _batch(documents: Sequence[IntArray]) -> Batch:
    ids = np.concatenate(documents)
    return Batch(
        input_ids=ids.astype(np.int64),
        targets=np.roll(ids, -1).astype(np.int64),
        loss_weights=np.ones(len(ids), np.float32),
        position_ids=np.concatenate([np.arange(len(document)) for document in documents]),
        cu_seqlens=np.cumsum([0, *map(len, documents)]).astype(np.int32),
    )
