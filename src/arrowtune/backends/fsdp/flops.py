"""How much a model has to compute for a step, and how much a device can."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from arrowtune.types import Batch

_PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
    "MI300X": 1307e12,
}
"""Dense bfloat16 operations a second by a part of the device's name, from the makers' data sheets; longer names first."""


def peak_flops(device: torch.device) -> float:
    """Of one device, in bfloat16; 0 where it is not known."""
    if device.type != "cuda":
        return 0.0
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS.items() if part in name), 0.0)


class Flops:
    """Floating-point operations that forward and backward of a model need: those of its matrices and of its attention.

    A matrix takes 2 operations per element and token forward, 2 for the gradient of its input, and 2 for its own where it is
    trained. What is computed twice to save memory is not counted, nor is the output layer where there is nothing to learn.

    Args:
        model: Whole or sharded, on any device.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        head = model.get_output_embeddings()
        lookups = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        owned = {id(parameter) for parameter in head.parameters()} if head is not None else set()
        active = _active_share(config)
        self._per_token = self._per_target = 0.0
        for name, parameter in model.named_parameters():
            cost = float(parameter.numel() * (6 if parameter.requires_grad else 4))
            if parameter.ndim < 2:
                continue
            if id(parameter) in owned:
                self._per_target += cost
            elif id(parameter) not in lookups:
                self._per_token += cost * (active if ".experts." in name else 1.0)
        heads = getattr(config, "num_attention_heads", 0) or 0
        width = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
        # Two products of 2 operations each, forward, and twice that backward.
        self._per_pair = 12.0 * heads * width
        self._windows = _windows(config)

    def of(self, batches: Iterable[Batch]) -> float:
        """For one pass over some micro-batches, forward and backward."""
        total = 0.0
        for batch in batches:
            lengths = np.diff(batch.cu_seqlens).astype(np.float64)
            pairs = sum(_pairs(lengths, window) for window in self._windows)
            total += self._per_token * len(batch.input_ids) + self._per_target * np.count_nonzero(batch.loss_weights)
            total += self._per_pair * pairs
        return total


def _active_share(config: object) -> float:
    """Of the experts, how many a token passes through."""
    chosen = getattr(config, "num_experts_per_tok", None)
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next((found for name in names if (found := getattr(config, name, None))), None)
    return chosen / count if chosen and count else 1.0


def _windows(config: object) -> list[int | None]:
    """What every layer sees."""
    layers = getattr(config, "num_hidden_layers", 0)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * layers
    return [window if kind == "sliding_attention" else None for kind in kinds if "attention" in kind]


def _pairs(lengths: np.ndarray, window: int | None) -> float:
    """Queries and the keys they see, over documents."""
    if window is None:
        return float((lengths * (lengths + 1) / 2).sum())
    beyond = np.maximum(lengths - window, 0)
    within = lengths - beyond
    return float((within * (within + 1) / 2 + beyond * window).sum())
