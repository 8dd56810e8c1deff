"""Whether documents that share a row stay strangers: measured, not assumed."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from arrowtune.backends.fsdp.loss import packed_logits
from arrowtune.types import Batch

_LENGTH = 12
_TOLERANCE = 1e-3


@torch.no_grad()
def documents_leak(model: PreTrainedModel, device: torch.device) -> bool:
    """Pack two documents, change the first, and see whether the logits of the second move.

    Attention is kept apart by positions that restart; recurrent and hybrid models carry a state across them.
    """
    training = model.training
    model.eval()
    vocabulary = next(model.get_input_embeddings().parameters()).shape[0]
    first, other, second = (np.arange(_LENGTH) * step % vocabulary for step in (7, 11, 13))
    packed = [_logits(model, [before, second], device)[_LENGTH:] for before in (first, other)]
    model.train(training)
    return float((packed[0] - packed[1]).abs().max()) > _TOLERANCE * float(packed[0].std())


def _logits(model: PreTrainedModel, documents: list[np.ndarray], device: torch.device) -> torch.Tensor:
    ids = np.concatenate(documents)
    batch = Batch(
        input_ids=ids.astype(np.int64),
        targets=np.zeros(len(ids), np.int64),
        loss_weights=np.zeros(len(ids), np.float32),
        position_ids=np.concatenate([np.arange(len(document)) for document in documents]),
        cu_seqlens=np.cumsum([0, *map(len, documents)]).astype(np.int32),
    )
    return packed_logits(model, batch, device).float()
