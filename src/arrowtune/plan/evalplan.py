"""The plan of an evaluation set: every example once, in store order, packed window by window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from arrowtune.errors import PlanError
from arrowtune.plan.batch import make_batches
from arrowtune.plan.deal import deal
from arrowtune.plan.order import Refs
from arrowtune.plan.packing import check_fits, pack
from arrowtune.protocols import Examples
from arrowtune.types import Batch, Row

_WINDOW = 1024


@dataclass(frozen=True)
class EvalPlan:
    """An evaluation set, cut into windows of consecutive examples that are packed and dealt to the ranks.

    Attributes:
        store: The examples.
        capacity: Positions of a micro-batch row.
        packing: As `batch.packing`.
        align: Every document takes up a multiple of so many positions.

    Raises:
        PlanError: An example that no row can hold, or nothing to measure.
    """

    store: Examples
    capacity: int
    packing: str = "best_fit"
    align: int = 1

    def __post_init__(self) -> None:
        check_fits(self.store, self.capacity, self.align)
        if not self.trained_tokens:
            raise PlanError(
                f"the evaluation set {self.name!r} has no token to measure the loss of",
                hint="leave it out of data.eval, or see the skipped rows of `arrowtune prepare`",
            )

    @property
    def name(self) -> str:
        """The name of the set."""
        return self.store.name

    @property
    def windows(self) -> int:
        """How many windows there are."""
        return -(-len(self.store) // _WINDOW)

    @property
    def loss_weight(self) -> float:
        """Sum of loss weights over the set, the denominator of its mean."""
        return float(self.store.loss_weight_sums.sum(dtype=np.float64))

    @property
    def trained_tokens(self) -> int:
        """Tokens with weight in the set."""
        return int(self.store.trained_tokens.sum(dtype=np.int64))

    def refs(self, window: int) -> Refs:
        """The examples of a window."""
        rows = np.arange(window * _WINDOW, min((window + 1) * _WINDOW, len(self.store)), dtype=np.int64)
        return Refs(np.zeros(len(rows), dtype=np.int32), rows)

    def rank_rows(self, window: int, rank: int, world: int) -> list[Row]:
        """The rows of one rank; every rank has as many, an empty one where nothing is left."""
        lengths = self.store.lengths[self.refs(window).rows].astype(np.int64)
        aligned = -(-lengths // self.align) * self.align
        assigned = pack(aligned, self.capacity, self.packing)
        return deal(aligned, assigned, self.capacity, world, spread=self.packing != "none")[rank]

    def window_batches(self, window: int, rank: int, world: int) -> list[Batch]:
        """The micro-batches of one rank in one window."""
        return make_batches([self.store], self.refs(window), self.rank_rows(window, rank, world), self.align)

    def batches(self, rank: int, world: int) -> Iterator[Batch]:
        """All micro-batches of one rank, window after window; every rank has as many."""
        for window in range(self.windows):
            yield from self.window_batches(window, rank, world)
