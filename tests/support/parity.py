"""One global batch, computed in every way there is: what the ranks of the parity tests run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from support.plan import ArrayExamples

VOCABULARY = 300

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 16},
    "gemma3_text": {"model_type": "gemma3_text", "tie_word_embeddings": True, "head_dim": 16, "sliding_window": 8},
}
"""Small models of the architectures that packing must be right for."""

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def model_folder(kind: str, folder: Path) -> Path:
    """A folder with random weights of a small model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    options = {**SHAPE, **CONFIGS[kind]}
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # Away from the tiny initial scale, so that attention and norms matter to the result.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return folder


def examples(count: int = 10) -> ArrayExamples:
    """Examples of 2 to 40 tokens with runs of trained positions, one with a fractional weight."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(2, 41, count)
    ids = [rng.integers(0, VOCABULARY, length).tolist() for length in lengths]
    weights = [np.where(rng.random(length) < 0.5, 1.0, 0.0) for length in lengths]
    for row in weights:
        row[0], row[-1] = 0.0, 1.0
    weights[2][-1] = 0.25
    return ArrayExamples(ids, [row.tolist() for row in weights])


def compute(payload: dict[str, Any]) -> dict[str, Any]:
    """Loss and every gradient of one global batch on the ranks there are; as plain arrays.

    Args:
        payload: `model` (folder), `packing`, `capacity`, and optionally `checkpointing` and `compute_dtype`.
    """
    import torch
    from torch.distributed.tensor import DTensor

    from arrowtune.backends import open_backend
    from arrowtune.plan import Plan
    from arrowtune.plan.config import BatchConfig

    store = examples()
    batch = BatchConfig(examples=len(store), packing=payload["packing"])
    plan = Plan.build([store], weights=None, batch=batch, capacity=payload["capacity"], seed=0)
    strategy = StrategyConfig(
        activation_checkpointing=payload.get("checkpointing", False), compute_dtype=payload.get("compute_dtype", "auto")
    )
    backend = open_backend(ModelConfig(path=str(payload["model"])), strategy, OptimizerConfig(max_grad_norm=None), seed=0)
    gradients: dict[str, np.ndarray] = {}

    def keep(*_: object) -> None:
        for name, parameter in backend.model.named_parameters():
            full = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
            gradients[name.replace("_checkpoint_wrapped_module.", "")] = full.cpu().numpy().copy()

    backend.optimizer.register_step_pre_hook(keep)
    totals = plan.totals(0)
    batches = plan.batches(0, backend.rank, backend.world_size)
    result = backend.train_step(batches, loss_weight=totals.loss_weight, lr=1e-3)
    world = backend.world_size
    backend.close()
    assert isinstance(result.loss_sum, float)
    torch.manual_seed(0)
    return {
        "loss": result.loss_sum / totals.loss_weight,
        "grad_norm": result.grad_norm,
        "gradients": gradients,
        "micro_batches": len(batches),
        "world": world,
    }


def reference(folder: Path) -> dict[str, Any]:
    """The same by plain transformers: one row at a time, sum over count, no code of ours.

    `labels` with -100 give transformers' own mean over the trained tokens of a row; a weighted row is summed by hand.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    store = examples()
    total_weight, loss_sum = 0.0, torch.zeros(())
    for ids, weights in zip(store.input_ids, store.loss_weights, strict=True):
        tokens = torch.tensor(ids, dtype=torch.int64)[None]
        fractional = bool(((weights > 0) & (weights < 1)).any())
        if fractional:
            logits = model(input_ids=tokens).logits[0, :-1].float()
            losses = torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none")
            loss_sum = loss_sum + (losses * torch.tensor(weights[1:])).sum()
        else:
            labels = torch.where(torch.tensor(weights)[None] > 0, tokens, -100)
            loss_sum = loss_sum + model(input_ids=tokens, labels=labels).loss * int((weights[1:] > 0).sum())
        total_weight += float(weights[1:].sum())
    loss = loss_sum / total_weight
    loss.backward()
    gradients = {name: parameter.grad.numpy().copy() for name, parameter in model.named_parameters()}
    norm = float(np.sqrt(sum(float((gradient.astype(np.float64) ** 2).sum()) for gradient in gradients.values())))
    return {"loss": loss.item(), "grad_norm": norm, "gradients": gradients}
