"""The output layer and the cross-entropy in one, a chunk of positions at a time: `[positions, vocabulary]` never exists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

CHUNK_BYTES = 128 * 2**20
"""Of the logits that exist at a time, as float32: large enough that a chunk's products keep a device busy."""


@dataclass(frozen=True, slots=True)
class Logits:
    """What a model does with the products of its output layer.

    Attributes:
        scale: It multiplies them by this,
        cap: and then bounds them softly, `cap * tanh(x / cap)`; None leaves them as they are.
    """

    scale: float = 1.0
    cap: float | None = None


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    weights: torch.Tensor,
    logits: Logits | None = None,
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> torch.Tensor:
    """Sum of weighted cross-entropies of an output layer, float32.

    The gradient is made in the forward pass, where the logits of a chunk are at hand, so that nothing is computed twice
    and nothing of the size of the logits is kept. Losses and softmax are float32 whatever the dtype of the matrices;
    gradients of the output layer add up in float32. The idea is that of Liger Kernel's fused linear cross-entropy
    (Hsu et al., 2024, arXiv:2410.10989).

    Args:
        hidden: [positions, width].
        weight: [vocabulary, width], a plain tensor.
        bias: [vocabulary], or None.
        targets: int64[positions].
        weights: float32[positions].
        logits: What becomes of the products; nothing when None.
        chunk_bytes: Memory for the logits of a chunk.
    """
    result: Any = _LinearCrossEntropy.apply(hidden, weight, bias, targets, weights, logits or Logits(), chunk_bytes)
    loss: torch.Tensor = result
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        weights: torch.Tensor,
        logits: Logits,
        chunk_bytes: int,
    ) -> torch.Tensor:
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_hidden = torch.empty_like(hidden) if needs_hidden else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        of_bias = torch.zeros_like(bias, dtype=torch.float32) if needs_bias and bias is not None else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        size = max(1, chunk_bytes // (4 * len(weight)))
        for start in range(0, len(hidden), size):
            part = slice(start, start + size)
            losses, of_products = _chunk(
                hidden[part], weight, bias, targets[part], weights[part], logits, backward=any(ctx.needs_input_grad[:3])
            )
            total += losses
            if of_products is None:
                continue
            if of_bias is not None:
                of_bias += of_products.sum(0)
            of_products = of_products.to(weight.dtype)
            if of_hidden is not None:
                torch.mm(of_products, weight, out=of_hidden[part])
            if of_weight is not None:
                _add_product(of_weight, of_products, hidden[part])
        ctx.save_for_backward(of_hidden, of_weight, of_bias)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_hidden, of_weight, of_bias = ctx.saved_tensors
        of_weight_dtype, of_bias_dtype = ctx.dtypes
        (grad,) = grads
        # In place: they are ours, and as large as the output layer.
        return (
            None if of_hidden is None else of_hidden.mul_(grad.to(of_hidden.dtype)),
            None if of_weight is None else of_weight.mul_(grad).to(of_weight_dtype),
            None if of_bias is None else of_bias.mul_(grad).to(of_bias_dtype),
            None,
            None,
            None,
            None,
        )


def _chunk(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    weights: torch.Tensor,
    logits: Logits,
    *,
    backward: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weighted loss sum of some positions, and its gradient with respect to the products, float32."""
    scores = torch.nn.functional.linear(hidden, weight, bias).float()
    if logits.scale != 1.0:
        scores *= logits.scale
    if logits.cap is not None:
        scores.div_(logits.cap).tanh_().mul_(logits.cap)
    slopes = scores.div(logits.cap).square_().neg_().add_(1.0) if logits.cap is not None and backward else None
    wanted = targets[:, None]
    highest = scores.amax(1, keepdim=True)
    scores -= highest
    at_targets = scores.gather(1, wanted).squeeze(1)
    sums = scores.exp_().sum(1)
    loss = ((sums.log() - at_targets) * weights).sum()
    if not backward:
        return loss, None
    scores.mul_((weights / sums)[:, None])
    scores.scatter_add_(1, wanted, -weights[:, None])
    if slopes is not None:
        scores *= slopes
    if logits.scale != 1.0:
        scores *= logits.scale
    return loss, scores


def _add_product(total: torch.Tensor, of_products: torch.Tensor, hidden: torch.Tensor) -> None:
    if of_products.dtype == total.dtype:
        total.addmm_(of_products.T, hidden)
    else:
        total += of_products.T @ hidden
