"""A factored bigram model: the logits of the next token are `inputs[token] @ outputs`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arrowtune.types import Batch

Array = npt.NDArray[np.float64]


@dataclass(slots=True)
class Bigram:
    """Parameters, or a gradient of the same shapes.

    Attributes:
        inputs: float64[vocabulary, rank].
        outputs: float64[rank, vocabulary].
    """

    inputs: Array
    outputs: Array

    @classmethod
    def random(cls, vocabulary: int, rank: int, seed: int) -> Bigram:
        """Small random weights."""
        draw = np.random.default_rng(seed)
        return cls(draw.normal(0, 0.1, (vocabulary, rank)), draw.normal(0, 0.1, (rank, vocabulary)))

    def zeros(self) -> Bigram:
        """A gradient to add to."""
        return Bigram(np.zeros_like(self.inputs), np.zeros_like(self.outputs))

    def loss_sum(self, batch: Batch, gradient: Bigram | None = None, scale: float = 1.0) -> float:
        """Sum of weighted cross-entropies in nats; adds its gradient times `scale` to `gradient`."""
        kept = np.flatnonzero(batch.loss_weights)
        if not len(kept):
            return 0.0
        tokens, targets = batch.input_ids[kept], batch.targets[kept]
        weights = batch.loss_weights[kept].astype(np.float64)
        hidden = self.inputs[tokens]
        logits = hidden @ self.outputs
        logits -= logits.max(axis=1, keepdims=True)
        norm = np.log(np.exp(logits).sum(axis=1))
        losses = norm - logits[np.arange(len(kept)), targets]
        if gradient is not None:
            error = np.exp(logits - norm[:, None])
            error[np.arange(len(kept)), targets] -= 1
            error *= (weights * scale)[:, None]
            np.add.at(gradient.inputs, tokens, error @ self.outputs.T)
            gradient.outputs += hidden.T @ error
        return float((losses * weights).sum())

    def arrays(self) -> list[Array]:
        """Both tables, to be changed in place."""
        return [self.inputs, self.outputs]
