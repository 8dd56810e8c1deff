"""The plan of a run: a pure function of (seed, lengths, weights, batch settings, step).

The position in the data is one integer, the step. Which examples are in a step depends on neither packing, capacity,
alignment nor the number of ranks; how they share rows depends on packing, and who computes which row on the ranks.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arrowtune.errors import PlanError
from arrowtune.fingerprint import digest_json
from arrowtune.plan.batch import make_batches
from arrowtune.plan.config import BatchConfig
from arrowtune.plan.cut import WINDOW, ByExamples, ByTokens, Cut
from arrowtune.plan.deal import Dealt, deal
from arrowtune.plan.mixing import Mixing
from arrowtune.plan.mixture import shares_of
from arrowtune.plan.order import ORDER_VERSION, Order, Refs
from arrowtune.plan.packing import check_fits, pack, rows_of
from arrowtune.plan.samplers import LengthGrouped, Sampler, load_sampler
from arrowtune.plan.shares import lay_out
from arrowtune.protocols import Examples
from arrowtune.types import Batch, PlannedStep, Row, StepTotals

Ints = npt.NDArray[np.int64]

_NO_CUT = ByExamples(1, 1, None)
"""Until there is one: it is made of the plan itself."""


@dataclass(frozen=True)
class Plan:
    """Build it with `Plan.build`.

    Attributes:
        stores: The sources.
        order: Every draw of the run.
        sampler: Which example each draw is: the order, or another.
        cut: Which draws make a step.
        batch: What an optimizer step sees.
        capacity: Positions of a micro-batch row.
        align: Every document takes up a multiple of so many positions, inside the capacity.
        seed: Of the order.
        mixing: How the sources are mixed.
        sampler_name: As the run file names it, with its options.
        steps: Optimizer steps of the run.
        asked_steps: Those that were asked for; more than `steps` where sources run out before.
        shift: Step 0 of the run is this step of the order: other than 0 where a run has changed its plan on its way.
    """

    stores: tuple[Examples, ...]
    order: Order
    sampler: Sampler
    cut: Cut
    batch: BatchConfig
    capacity: int
    align: int
    seed: int
    mixing: Mixing
    sampler_name: str
    steps: int
    asked_steps: int
    shift: int = 0

    @classmethod
    def build(
        cls,
        stores: Sequence[Examples],
        *,
        weights: Sequence[float | str] | None = None,
        mixing: Mixing | None = None,
        sampler: str = "random",
        sampler_options: Mapping[str, Any] | None = None,
        batch: BatchConfig,
        capacity: int,
        seed: int,
        epochs: float | None = None,
        steps: int | None = None,
        align: int = 1,
        cache: Path | None = None,
    ) -> Plan:
        """Lay out a run.

        Args:
            stores: The training sources.
            weights: Share of each, or None for every row once per epoch; short for `mixing`.
            mixing: How the sources are mixed.
            sampler: `random`, `sequential`, `length_grouped`, or a class of one's own (see `samplers`).
            sampler_options: Further arguments of a class of one's own.
            batch: The global batch and the packing.
            capacity: Positions of a micro-batch row.
            seed: Of the order.
            epochs: Passes over as many examples as the stores hold together; 1 where `steps` is None too.
            steps: Optimizer steps; goes before `epochs`.
            align: Every document takes up a multiple of so many positions.
            cache: A folder for what takes long to count.

        Raises:
            PlanError: There is nothing to train on, or an example that no row can hold.
        """
        mixing = mixing or Mixing(weights)
        sizes, names = [len(store) for store in stores], [store.name for store in stores]
        shares = None
        if mixing.weighted:
            if mixing.schedule and batch.tokens is not None:
                raise PlanError(
                    "weights change by step, and steps by tokens", hint="give batch.examples in place of batch.tokens"
                )
            phases = mixing.phases(sizes, names, -(-sum(sizes) // batch.size), batch.size)
            shares = lay_out(phases, mixing.caps(sizes), names, stop=mixing.exhausted != "repeat")
        end = sum(sizes) if mixing.exhausted != "repeat" else None
        order = Order(sizes, shares, None if sampler == "sequential" else seed, names, end)
        for store in stores:
            check_fits(store, capacity, align)
        drawn = _sampler(sampler, sampler_options or {}, order, stores, batch.size, seed)
        named = sampler if not sampler_options else f"{sampler} {json.dumps(sampler_options, sort_keys=True, default=str)}"
        plan = cls(tuple(stores), order, drawn, _NO_CUT, batch, capacity, align, seed, mixing, named, 0, 0)
        plan = replace(plan, cut=plan._cut(cache))
        steps = plan.cut.steps(1.0 if epochs is None else epochs) if steps is None else steps
        most = None if order.end is None else plan.cut.steps_of(order.end)
        if most is not None and most < steps and mixing.exhausted == "error":
            raise _runs_out(order, names, most, steps)
        return replace(plan, steps=steps if most is None else min(steps, most), asked_steps=steps)

    def _cut(self, cache: Path | None) -> Cut:
        epoch, end = self.examples_per_epoch, self.order.end
        if self.batch.tokens is None:
            return ByExamples(self.batch.size, epoch, end)
        name = digest_json({**self.fingerprint, "end": end})
        return ByTokens(
            self.batch.tokens,
            lambda start, count: self.lengths(self.sampler.refs(start, count)),
            epoch,
            end,
            None if cache is None else lambda number: cache / f"{name}-{number}.npy",
            # A sampler of one's own may not be for several threads.
            (os.cpu_count() or 1) if self.sampler is self.order else 1,
        )

    @property
    def examples_per_epoch(self) -> int:
        """As many as the stores hold together, weighted or not; a sampler of one's own may say otherwise."""
        return self.sampler.epoch_examples

    @property
    def steps_per_epoch(self) -> int:
        """Of the first epoch. The last step of an epoch takes what is left; no batch straddles epochs."""
        return self.cut.steps(1.0)

    def epoch(self, steps: int) -> float:
        """Epochs done after so many steps."""
        return self.span(steps)[0] / self.examples_per_epoch

    @property
    def fingerprint(self) -> dict[str, str]:
        """Everything that decides which examples are in a step, by name; equal fingerprints continue each other.

        The length of the run, packing, capacity and ranks are no part of it: changing them keeps the order.
        """
        named = {
            "order": str(ORDER_VERSION),
            "train.seed": str(self.seed),
            "batch.examples" if self.batch.tokens is None else "batch.tokens": str(self.batch.tokens or self.batch.size),
            "data.weights": self._shares(),
        }
        if self.mixing.text():
            named["data.train.max_passes"] = self.mixing.text()
        if self.sampler_name != "random":
            named["data.sampler"] = self.sampler_name
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
        return self.cut.span(step + self.shift)

    def shifted(self, shift: int) -> Plan:
        """The same order from another of its steps on; the run ends where it would have."""
        steps, asked = self.steps + self.shift - shift, self.asked_steps + self.shift - shift
        return replace(self, shift=shift, steps=steps, asked_steps=asked)

    def step_at(self, tokens: int) -> int:
        """The first step of the order before which at least so many tokens have been seen."""
        if tokens <= 0:
            return 0
        draws = seen = 0
        while True:
            # Batches end where epochs do, and so do these parts.
            count = min(WINDOW, self.examples_per_epoch - draws % self.examples_per_epoch)
            sums = np.cumsum(self.lengths(self.sampler.refs(draws, count)))
            if seen + int(sums[-1]) >= tokens:
                return self.cut.steps_of(draws + int(np.searchsorted(sums, tokens - seen)) + 1)
            seen += int(sums[-1])
            draws += count
            if self.order.end is not None and draws >= self.order.end:
                return self.cut.steps_of(self.order.end)

    def refs(self, step: int) -> Refs:
        """The examples of a 0-based step, in order: the same on every rank, for any number of ranks."""
        return self.sampler.refs(*self.span(step))

    def rows(self, step: int) -> list[Row]:
        """The packed rows of a step, each with its indices into `refs(step)`."""
        return rows_of(self._packed(self.aligned(self.refs(step))))

    def rank_rows(self, step: int, rank: int, world: int) -> list[Row]:
        """The rows that one rank computes; every rank has as many, an empty one where nothing is left (see `deal`)."""
        return self.dealt(self.refs(step), world)[rank]

    def dealt(self, refs: Refs, world: int) -> Dealt:
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

    def totals_of(self, refs: Refs, dealt: Dealt) -> StepTotals:
        """The totals of the refs of a step and the rows of all its ranks."""
        tokens, trained, weight = 0, 0, 0.0
        per_source: dict[str, int] = {}
        for index, store in enumerate(self.stores):
            rows = refs.rows[refs.stores == index]
            tokens += int(store.lengths[rows].sum(dtype=np.int64))
            trained += int(store.trained_tokens[rows].sum(dtype=np.int64))
            weight += float(store.loss_weight_sums[rows].sum(dtype=np.float64))
            per_source[store.name] = len(rows)
        padding = int(self.aligned(refs).sum()) - tokens + dealt.empty * self.align
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
        if not self.mixing.weighted:
            return "none"
        sizes, names = self.order.sizes, [store.name for store in self.stores]
        phases = self.mixing.phases(sizes, names, -(-sum(sizes) // self.batch.size), self.batch.size)
        return "; ".join(
            ", ".join(map(repr, shares_of(phase.weights))) + ("" if phase.until is None else f" until draw {phase.until}")
            for phase in phases
        )

    def _packed(self, lengths: Ints) -> Ints:
        return pack(lengths, self.capacity, self.batch.packing)

    def _digest(self, refs: Refs) -> str:
        # By identity, not by position in the run file: a source that moves in the list is still the same source.
        identities = [hashlib.blake2b(store.identity.encode(), digest_size=8).digest() for store in self.stores]
        words = np.frombuffer(b"".join(identities), dtype="<u8")
        addresses = np.stack([words[refs.stores], refs.rows.astype("<u8")], axis=1)
        return hashlib.blake2b(addresses.tobytes(), digest_size=16).hexdigest()


def _sampler(name: str, options: Mapping[str, Any], order: Order, stores: Sequence[Examples], batch: int, seed: int) -> Sampler:
    if name in ("random", "sequential"):
        return order
    if name == "length_grouped":
        return LengthGrouped(order, stores, batch, seed)
    return load_sampler(name, options, stores, seed)


def _runs_out(order: Order, names: Sequence[str], most: int, steps: int) -> PlanError:
    source = None if order.shares is None else order.shares.ended_by
    what = "every example has been seen" if source is None else f"source {names[source]!r} has no example left"
    return PlanError(
        f"{what} after step {most}, and the run has {steps}",
        hint="train fewer steps, give the source a smaller weight, or set data.exhausted to repeat or stop",
    )
