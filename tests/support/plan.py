"""Tokenised examples in memory, for tests of everything right of the store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from arrowtune.protocols import Tokens
from arrowtune.types import IntArray


class ArrayExamples:
    """Examples from plain lists; `arrowtune.protocols.Examples`.

    Args:
        input_ids: Token ids of each example.
        loss_weights: As many weights; all 1 when absent (position 0 still never counts).
        name: Of the source.
    """

    def __init__(
        self, input_ids: Sequence[Sequence[int]], loss_weights: Sequence[Sequence[float]] | None = None, *, name: str = "source"
    ) -> None:
        weights = [[1.0] * len(ids) for ids in input_ids] if loss_weights is None else loss_weights
        self.name = name
        self.identity = f"identity-of-{name}"
        self.input_ids = [np.array(ids, dtype=np.int32) for ids in input_ids]
        self.loss_weights = [np.array(row, dtype=np.float32) for row in weights]
        self.lengths = np.array([len(ids) for ids in input_ids], dtype=np.int32)
        self.trained_tokens = np.array([int(np.count_nonzero(row[1:])) for row in self.loss_weights], dtype=np.int32)
        self.loss_weight_sums = np.array([float(row[1:].sum()) for row in self.loss_weights], dtype=np.float64)

    @classmethod
    def of_lengths(cls, lengths: Sequence[int], *, name: str = "source") -> ArrayExamples:
        """Examples whose tokens tell where they come from: row r of length n holds 1000 r, 1000 r + 1, ..."""
        return cls([range(1000 * row, 1000 * row + length) for row, length in enumerate(lengths)], name=name)

    def __len__(self) -> int:
        return len(self.input_ids)

    def fetch(self, rows: IntArray) -> Tokens:
        lengths = self.lengths[rows].astype(np.int64)
        empty_ids, empty_weights = np.zeros(0, np.int32), np.zeros(0, np.float32)
        return Tokens(
            np.concatenate([empty_ids, *(self.input_ids[row] for row in rows)]),
            np.concatenate([empty_weights, *(self.loss_weights[row] for row in rows)]),
            np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        )


class SizedExamples:
    """Lengths without tokens, for plans over more rows than tests want to hold."""

    def __init__(self, lengths: IntArray, *, name: str = "source") -> None:
        self.name = name
        self.identity = f"identity-of-{name}"
        self.lengths = lengths.astype(np.int32)
        self.trained_tokens = self.lengths - 1
        self.loss_weight_sums = self.trained_tokens.astype(np.float64)

    def __len__(self) -> int:
        return len(self.lengths)

    def fetch(self, rows: IntArray) -> Tokens:
        lengths = self.lengths[rows].astype(np.int64)
        total = int(lengths.sum())
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return Tokens(np.ones(total, np.int32), np.ones(total, np.float32), offsets)
