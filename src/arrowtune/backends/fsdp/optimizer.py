"""AdamW over sharded parameters, and clipping of the whole gradient."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from arrowtune.backends.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with decoupled decay on matrices; vectors (norms, biases) are not decayed."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        # One pass over each parameter, and one dispatch for all of them: several times the default's speed on a CPU too.
        fused=True,
    )


def update(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Change the weights by the gradients they hold, and drop the gradients. A rate of 0 leaves every bit as it is."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    if lr > 0:  # Adding a zero would turn -0.0 into 0.0.
        optimizer.step()
    optimizer.zero_grad()


def grad_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """L2 norm of the whole gradient over all ranks: a scalar on this rank's device."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip(parameters: list[nn.Parameter], norm: torch.Tensor, max_norm: float | None) -> None:
    """Scale the gradient so that its norm is at most `max_norm`."""
    if max_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
