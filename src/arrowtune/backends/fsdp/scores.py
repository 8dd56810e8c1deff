"""Attention whose scores have to be at hand: soft caps and sinks, which no fused kernel of torch knows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_BLOCK = 256
"""Queries at a time: so much of the square of a document lies below its diagonal that most of the rest is never computed."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What becomes of the products of queries and keys.

    Attributes:
        scale: It multiplies them.
        dropout: Of the probabilities.
        cap: They are bounded softly, `cap * tanh(x / cap)`.
        sinks: [heads], the score of a key that is not there.
    """

    scale: float
    dropout: float = 0.0
    cap: float | None = None
    sinks: torch.Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether a fused kernel does all of it."""
        return self.cap is None and self.sinks is None


def score_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None, scores: Scores
) -> torch.Tensor:
    """Causal attention, a block of queries at a time; softmax in float32.

    Args:
        query: [documents, heads, length, width].
        key: [documents, shared heads, length, width].
        value: As `key`.
        window: How many keys a query sees, itself included.
        scores: What becomes of the scores.

    Returns:
        [documents, heads, length, width].
    """
    shared = query.shape[1] // key.shape[1]
    length = query.shape[2]
    # Heads that share keys lie side by side: [documents, shared heads, heads of each, length, width].
    query = query.unflatten(1, (-1, shared))
    key, value = key.unsqueeze(2), value.unsqueeze(2)
    outputs = []
    for start in range(0, length, _BLOCK):
        stop = min(start + _BLOCK, length)
        first = 0 if window is None else max(0, start - window + 1)
        seen = slice(first, stop)
        products = query[..., start:stop, :] @ key[..., seen, :].transpose(-1, -2) * scores.scale
        mask = visible(start, stop, first, window, query.device)
        outputs.append(_probabilities(products, mask, scores).to(value.dtype) @ value[..., seen, :])
    return torch.cat(outputs, dim=-2).flatten(1, 2)


def _probabilities(products: torch.Tensor, mask: torch.Tensor, scores: Scores) -> torch.Tensor:
    """Float32, of [documents, shared heads, heads of each, queries, keys]."""
    if scores.cap is not None:
        products = torch.tanh(products / scores.cap) * scores.cap
    products = products.float().masked_fill(~mask, -torch.inf)
    if scores.sinks is not None:
        sinks = scores.sinks.float().view(1, *products.shape[1:3], 1, 1).expand(len(products), -1, -1, products.shape[3], 1)
        products = torch.cat([products, sinks], dim=-1)
    probabilities = products.softmax(-1)
    if scores.sinks is not None:
        probabilities = probabilities[..., :-1]
    return torch.nn.functional.dropout(probabilities, scores.dropout) if scores.dropout else probabilities


def visible(start: int, stop: int, first: int, window: int | None, device: torch.device) -> torch.Tensor:
    """bool[queries, keys]: which of the keys `[first, stop)` the queries `[start, stop)` see."""
    queries = torch.arange(start, stop, device=device)[:, None]
    keys = torch.arange(first, stop, device=device)[None]
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)
