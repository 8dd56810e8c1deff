"""Counted operations against those that torch sees being done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arrowtune.types import Batch
from support.parity import model_folder

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

LENGTH = 24


def batch_of(length: int) -> Batch:
    return Batch(
        input_ids=np.arange(length),
        targets=np.arange(1, length + 1),
        loss_weights=np.ones(length, np.float32),
        position_ids=np.arange(length),
        cu_seqlens=np.array([0, length], np.int32),
    )


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3_text"])
@pytest.mark.parametrize("lora", [False, True])
def test_flops_are_those_that_torch_counts(tmp_path: Path, kind: str, lora: bool) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM

    from arrowtune.backends.config import LoraConfig
    from arrowtune.backends.fsdp.adapters import add_adapters
    from arrowtune.backends.fsdp.flops import Flops

    folder = model_folder(kind, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if lora:
        add_adapters(model, LoraConfig(rank=4), seed=0)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(LENGTH)[None], use_cache=False).logits.sum().backward()
    seen = counter.get_total_flops()
    config = model.config
    # Eager attention computes the pairs that the mask hides too.
    windows = [config.sliding_window if one == "sliding_attention" else LENGTH for one in getattr(config, "layer_types", [])]
    windows = windows or [LENGTH] * config.num_hidden_layers
    visible = sum(min(query + 1, window) for window in windows for query in range(LENGTH))
    hidden = len(windows) * LENGTH**2 - visible
    right = seen - 12 * config.num_attention_heads * config.head_dim * hidden
    if lora:
        # Nothing before the first layer learns: no gradient of what enters its three projections is made.
        first = model.model.layers[0].self_attn
        layers = [first.q_proj, first.k_proj, first.v_proj]
        right += 2 * LENGTH * sum(layer.weight.numel() + layer.lora_A.default.weight.numel() for layer in layers)
    assert Flops(model).of([batch_of(LENGTH)]) == pytest.approx(right, rel=1e-9)
