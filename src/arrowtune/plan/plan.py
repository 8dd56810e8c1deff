"""The plan of a run: a pure function of (seed, lengths, weights, batch settings, step).

The position in the data is one integer, the step. Which examples are in a step depends on neither packing, capacity,
alignment nor the number of ranks; how they share rows depends on packing, and who computes which row on the ranks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arrowtune.plan.batch import make_batches
from arrowtune.plan.config import BatchConfig
from arrowtune.plan.deal import deal
from arrowtune.plan.order import ORDER_VERSION, Order, Refs
from arrowtune.plan.packing import check_fits, pack, rows_of
from arrowtune.protocols import Examples
from arrowtune.types import Batch, PlannedStep, Row, StepTotals

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """Build it with `Plan.build`.

    Attributes:
        stores: The sources.
        order: Every draw of the run.
        batch: What an optimizer step sees.
        capacity: Positions of a micro-batch row.
        align: Every document takes up a multiple of so many positions, inside the capacity.
        seed: Of the order.
        weights: Share of each store as given, or None.
        steps: Optimizer steps of the run.
    """

    stores: tuple[Examples, ...]
    order: Order
    batch: BatchConfig
    capacity: int
    align: int
    seed: int
    weights: tuple[float, ...] | None
    steps: int

    @classmethod
    def build(
        cls,
        stores: Sequence[Examples],
        *,
        weights: Sequence[float] | None,
        batch: BatchConfig,
        capacity: int,
        seed: int,
        epochs: float | None = None,
        steps: int | None = None,
        align: int = 1,
    ) -> Plan:
        """Lay out a run.

        Args:
            stores: The training sources.
            weights: Share of each, or None for every row once per epoch.
            batch: The global batch and the packing.
            capacity: Positions of a micro-batch row.
            seed: Of the order.
            epochs: Passes over as many examples as the stores hold together; 1 where `steps` is None too.
            steps: Optimizer steps; goes before `epochs`.
            align: Every document takes up a multiple of so many positions.

        Raises:
            PlanError: There is nothing to train on, or an example that no row can hold.
        """
        order = Order([len(store) for store in stores], weights, seed, [store.name for store in stores])
        for store in stores:
            check_fits(store, capacity, align)
        per_epoch = -(-order.epoch_examples // batch.examples)
        if steps is None:
            # A third of an epoch of three steps is one step, whatever the last bit of the float says.
            steps = max(1, math.ceil(round((1.0 if epochs is None else epochs) * per_epoch, 9)))
        shares = None if weights is None else tuple(weights)
        return cls(tuple(stores), order, batch, capacity, align, seed, shares, steps)

    @property
    def examples_per_epoch(self) -> int:
        """As many as the stores hold together, weighted or not."""
        return self.order.epoch_examples

    @property
    def steps_per_epoch(self) -> int:
        """The last step of an epoch takes what is left; no batch straddles epochs."""
        return -(-self.examples_per_epoch // self.batch.examples)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Everything that decides which examples are in a step, by name; equal fingerprints continue each other.

        The length of the run, packing, capacity and ranks are no part of it: changing them keeps the order.
        """
        named = {
            "order": str(ORDER_VERSION),
            "train.seed": str(self.seed),
            "batch.examples": str(self.batch.examples),
            "data.weights": self._shares(),
        }
        sources = {f"data.train[{index}]": f"{store.identity} ({len(store)} rows)" for index, store in enumerate(self.stores)}
        return named | sources

    def differences(self, saved: Mapping[str, str]) -> list[str]:
        """What a saved fingerprint has otherwise, one clause each; empty where this plan continues that one."""
        own = self.fingerprint
        keys = [*own, *(key for key in saved if key not in own)]
        return [
            f"{key} was {saved.get(key, 'absent')} and is now {own.get(key, 'absent')}"
            for key in keys
            if saved.get(key) != own.get(key)
        ]

    def span(self, step: int) -> tuple[int, int]:
        """The draws of a 0-based step: the first, and how many. Steps beyond the end of the run continue the plan.

        Raises:
            IndexError: The step is negative.
        """
        if step < 0:
            raise IndexError(f"step {step} is negative; the first step is 0")
        epoch, number = divmod(step, self.steps_per_epoch)
        first = number * self.batch.examples
        return epoch * self.examples_per_epoch + first, min(self.batch.examples, self.examples_per_epoch - first)

    def refs(self, step: int) -> Refs:
        """The examples of a 0-based step, in order: the same on every rank, for any number of ranks."""
        return self.order.refs(*self.span(step))

    def rows(self, step: int) -> list[Row]:
        """The packed rows of a step, each with its indices into `refs(step)`."""
        return rows_of(self._packed(self.aligned(self.refs(step))))

    def rank_rows(self, step: int, rank: int, world: int) -> list[Row]:
        """The rows that one rank computes; every rank has as many, an empty one where nothing is left (see `deal`)."""
        return self.dealt(self.refs(step), world)[rank]

    def dealt(self, refs: Refs, world: int) -> list[list[Row]]:
        """The rows of every rank, for the refs of one step."""
        lengths = self.aligned(refs)
        return deal(lengths, self._packed(lengths), self.capacity, world, spread=self.batch.packing != "none")

    def batches(self, step: int, rank: int, world: int) -> list[Batch]:
        """The micro-batches of one rank."""
        refs = self.refs(step)
        return make_batches(self.stores, refs, self.dealt(refs, world)[rank], self.align)

    def totals(self, step: int, world: int = 1) -> StepTotals:
        """The global batch of a step, from lengths and sums of weights alone.

        Args:
            step: 0-based.
            world: Number of ranks; only `padding` depends on it.
        """
        refs = self.refs(step)
        return self.totals_of(refs, self.dealt(refs, world))

    def rank_step(self, step: int, rank: int, world: int) -> PlannedStep:
        """`batches` and `totals` of a step, packed once for both."""
        refs = self.refs(step)
        dealt = self.dealt(refs, world)
        return PlannedStep(step, make_batches(self.stores, refs, dealt[rank], self.align), self.totals_of(refs, dealt))

    def totals_of(self, refs: Refs, dealt: Sequence[Sequence[Row]]) -> StepTotals:
        """The totals of the refs of a step and the rows of all its ranks."""
        tokens, trained, weight = 0, 0, 0.0
        per_source: dict[str, int] = {}
        for index, store in enumerate(self.stores):
            rows = refs.rows[refs.stores == index]
            tokens += int(store.lengths[rows].sum(dtype=np.int64))
            trained += int(store.trained_tokens[rows].sum(dtype=np.int64))
            weight += float(store.loss_weight_sums[rows].sum(dtype=np.float64))
            per_source[store.name] = len(rows)
        empty = sum(not len(row) for rank in dealt for row in rank)
        padding = int(self.aligned(refs).sum()) - tokens + empty * self.align
        return StepTotals(len(refs), tokens, trained, weight, padding, per_source, self._digest(refs))

    def lengths(self, refs: Refs) -> Ints:
        """int64[n]: tokens of each example."""
        lengths = np.empty(len(refs), dtype=np.int64)
        for index, store in enumerate(self.stores):
            own = np.flatnonzero(refs.stores == index)
            lengths[own] = store.lengths[refs.rows[own]]
        return lengths

    def aligned(self, refs: Refs) -> Ints:
        """int64[n]: positions that each example takes up."""
        return -(-self.lengths(refs) // self.align) * self.align

    def _shares(self) -> str:
        # As shares of one: 3, 1 and 0.75, 0.25 are the same order.
        mix = self.order.mixture
        return "none" if mix is None else ", ".join(repr(share / sum(mix.shares)) for share in mix.shares)

    def _packed(self, lengths: Ints) -> Ints:
        return pack(lengths, self.capacity, self.batch.packing)

    def _digest(self, refs: Refs) -> str:
        # By identity, not by position in the run file: a source that moves in the list is still the same source.
        identities = [hashlib.blake2b(store.identity.encode(), digest_size=8).digest() for store in self.stores]
        words = np.frombuffer(b"".join(identities), dtype="<u8")
        addresses = np.stack([words[refs.stores], refs.rows.astype("<u8")], axis=1)
        return hashlib.blake2b(addresses.tobytes(), digest_size=16).hexdigest()
