"""The kernel of a GPU for rows of documents of different lengths."""

from __future__ import annotations

from functools import cache
from inspect import signature

import torch


def varlen_takes(query: torch.Tensor, value: torch.Tensor, dropout: float) -> bool:
    """Whether torch's kernel computes this."""
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] == value.shape[-1] <= 256
        and not dropout
        and _has_flash(query.device)
    )


@cache
def _has_flash(device: torch.device) -> bool:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    able = {"window_size", "enable_gqa"} <= set(signature(varlen_attn).parameters)
    return able and torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """Causal attention within documents by torch's kernel; arguments and result as `attention.attend`'s."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    before = -1 if window is None else window - 1
    attended = varlen_attn(
        q, k, v, cu_seqlens, cu_seqlens, longest, longest,
        scale=scale, window_size=(before, 0), enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    assert isinstance(attended, torch.Tensor)
    return attended[None]
