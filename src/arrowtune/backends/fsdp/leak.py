"""Whether documents that share a row stay strangers: measured, not assumed."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from arrowtune.backends.fsdp.loss import packed_logits
from arrowtune.types import Batch, IntArray

_LENGTH = 12
# Of the logits' spread. Attention that keeps documents apart differs by rounding alone, which low precision makes visible.
_TOLERANCE = 1e-3
_LOW_PRECISION = 5e-2


@torch.no_grad()
def documents_leak(model: PreTrainedModel, device: torch.device, compute: torch.dtype = torch.float32) -> bool:
    """Pack two documents and see whether the second notices: its logits alone, behind the first, and behind another one.

    Attention is kept apart by positions that restart; recurrent and hybrid models carry a state across them, and a model
    that ignores the positions it is given counts on through the row.

    Args:
        model: Sharded or whole; every rank calls it.
        device: Where it is.
        compute: The dtype of activations.
    """
    training = model.training
    model.eval()
    first, other, second = (np.arange(_LENGTH) * step % vocabulary_of(model) for step in (7, 11, 13))
    alone = _logits(model, [second], device)
    behind = [_logits(model, [before, second], device)[_LENGTH:] for before in (first, other)]
    model.train(training)
    tolerance = (_TOLERANCE if compute == torch.float32 else _LOW_PRECISION) * float(alone.std())
    return max(float((logits - alone).abs().max()) for logits in behind) > tolerance


def vocabulary_of(model: PreTrainedModel) -> int:
    """Rows of the input embedding, over all ranks."""
    rows: int = next(model.get_input_embeddings().parameters()).shape[0]
    return rows


def _logits(model: PreTrainedModel, documents: list[IntArray], device: torch.device) -> torch.Tensor:
    ids = np.concatenate(documents)
    batch = Batch(
        input_ids=ids.astype(np.int64),
        targets=np.zeros(len(ids), np.int64),
        loss_weights=np.zeros(len(ids), np.float32),
        position_ids=np.concatenate([np.arange(len(document)) for document in documents]),
        cu_seqlens=np.cumsum([0, *map(len, documents)]).astype(np.int32),
    )
    return packed_logits(model, batch, device).float()
