"""Attention over packed rows, one document at a time: what it costs is the sum over documents, not the square of the row.

It is known to `transformers` by a name, as an attention function and as the mask that goes with it: the mask of a row is the list
of its documents. Models are told to use that name, and nothing of theirs is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from arrowtune.backends.fsdp.kernels import varlen, varlen_takes
from arrowtune.backends.fsdp.scores import Scores, score_attention, visible

NAME = "arrowtune_documents"
_KINDS = {"full_attention", "sliding_attention"}
_REFUSED = ("position_bias", "attn_bias", "head_mask", "indexer_mask")


class UnknownAttention(Exception):
    """A model asks of its attention what this one does not do."""


@dataclass(frozen=True, slots=True)
class Documents:
    """The mask of a packed row.

    Attributes:
        lengths: Tokens of every document, in order; their sum is the length of the row.
        cu_seqlens: int32[documents + 1], where they begin and end, on the device.
        window: How many keys a query sees, itself included; None sees the whole document up to itself.
    """

    lengths: tuple[int, ...]
    cu_seqlens: torch.Tensor
    window: int | None = None


_ROW: ContextVar[Documents | None] = ContextVar("row", default=None)


@contextmanager
def documents(cu_seqlens: torch.Tensor, device: torch.device) -> Iterator[None]:
    """Within, models see rows made of these documents.

    Args:
        cu_seqlens: int32[documents + 1], on the CPU.
        device: Where the row is.
    """
    lengths = tuple(cu_seqlens.diff().tolist())
    token = _ROW.set(Documents(lengths, cu_seqlens.to(device, non_blocking=True)))
    try:
        yield
    finally:
        _ROW.reset(token)


def use_documents(model: PreTrainedModel) -> bool:
    """Let a model attend document by document, if it asks for its attention by name and for no other masks than we know."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    chunked = getattr(config, "attention_chunk_size", None) is not None
    if not type(model)._can_set_attn_implementation() or kinds - _KINDS or chunked or not getattr(config, "is_causal", True):
        return False
    model.set_attn_implementation(NAME)
    return bool(model.config._attn_implementation == NAME)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Documents,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within every document, as `transformers` calls it.

    Args:
        module: The attention layer.
        query: [1, heads, tokens, width]; heads that are a multiple of those of `key` and `value` share them in order.
        key: [1, shared heads, tokens, width].
        value: As `key`.
        attention_mask: The documents of the row.
        scaling: Of the scores; the root of the width by default.
        dropout: Of the probabilities.
        sliding_window: As `Documents.window`; the mask has the same.
        softcap: Bounds the scores softly.
        s_aux: [heads], scores of a key that is not there (an attention sink).
        others: What the kernels of transformers take; nothing here that would change the result.

    Returns:
        [1, tokens, heads, width], and no probabilities.

    Raises:
        UnknownAttention: The model asks for something else.
    """
    row = attention_mask
    asked = [name for name in _REFUSED if others.get(name) is not None]
    if not isinstance(row, Documents) or len(query) != 1 or asked or not getattr(module, "is_causal", True):
        raise UnknownAttention(asked[0] if asked else type(module).__name__)
    window = row.window or sliding_window
    scores = Scores(scaling or query.shape[-1] ** -0.5, dropout, softcap, s_aux)
    if scores.plain and varlen_takes(query, value, dropout):
        return varlen(query, key, value, row.cu_seqlens, max(row.lengths), window, scores.scale), None
    return _by_document(query, key, value, row.lengths, window, scores), None


def _by_document(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: tuple[int, ...],
    window: int | None,
    scores: Scores,
) -> torch.Tensor:
    """Documents of one length go together."""
    groups: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        groups.setdefault(length, []).append(number)
    # Splitting, whose gradient is one concatenation: that of a slice is as large as the row. By tokens, as they lie in memory.
    parts = [tensor[0].transpose(0, 1).split(lengths) for tensor in (query, key, value)]
    outputs: list[torch.Tensor] = [query] * len(lengths)
    for length, members in groups.items():
        q, k, v = (_together([split[member] for member in members]) for split in parts)
        attended = _attend(q, k, v, length, window, scores)
        for member, output in zip(members, attended.transpose(1, 2).unbind(0), strict=True):
            outputs[member] = output
    return torch.cat(outputs)[None]


def _together(documents: list[torch.Tensor]) -> torch.Tensor:
    """[documents, heads, length, width]."""
    return (documents[0][None] if len(documents) == 1 else torch.stack(documents)).transpose(1, 2)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, length: int, window: int | None, scores: Scores
) -> torch.Tensor:
    """Documents of one length: [documents, heads, length, width]."""
    if not scores.plain:
        return score_attention(query, key, value, window, scores)
    options: dict[str, Any] = {
        "dropout_p": scores.dropout, "scale": scores.scale, "enable_gqa": query.shape[1] != key.shape[1],
    }  # fmt: skip
    if window is None or length <= window:
        return scaled_dot_product_attention(query, key, value, is_causal=True, **options)
    outputs = []
    for start in range(0, length, window):
        stop, first = min(start + window, length), max(0, start - window + 1)
        mask = visible(start, stop, first, window, query.device)
        seen = slice(first, stop)
        part = query[:, :, start:stop]
        outputs.append(scaled_dot_product_attention(part, key[:, :, seen], value[:, :, seen], attn_mask=mask, **options))
    return torch.cat(outputs, dim=2)


def _mask(*_: Any, local_size: int | None = None, **__: Any) -> Documents:
    row = _ROW.get()
    if row is None:
        raise UnknownAttention("a model runs outside of its objective")
    return Documents(row.lengths, row.cu_seqlens, local_size)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, _mask)
