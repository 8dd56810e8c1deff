"""What a plan comes to, before it is trained: totals, packing beside its bound, balance of the ranks, realised shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arrowtune.plan.deal import cost
from arrowtune.plan.packing import lower_bound, pack
from arrowtune.plan.plan import Plan
from arrowtune.plan.samplers import Own

Ints = npt.NDArray[np.int64]

_SAMPLED_STEPS = 64
_COUNTED_ROWS = 4_000_000
_POOR_PACKING = 0.6
_BETTER_PACKING = 0.1
_LARGER = (1.25, 1.5, 2, 3, 4)
_TRIED_STEPS = 8


@dataclass(frozen=True, slots=True)
class SourceShare:
    """What a run takes from one source.

    Attributes:
        name: The source.
        weight: Its share of the examples as asked for; None where there are no weights.
        examples, tokens, trained_tokens: Over the run.
        passes: How often each of its rows is seen.
        share_of_examples, share_of_tokens: Of the whole run.
    """

    name: str
    weight: float | None
    examples: int
    tokens: int
    trained_tokens: int
    passes: float
    share_of_examples: float
    share_of_tokens: float


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan in numbers.

    Attributes:
        steps, steps_per_epoch: Optimizer steps.
        examples, tokens, trained_tokens: Over the run.
        estimated: Whether tokens come from a sample: exact unless the last, unfinished pass of a source is very long.
        sampled_steps: Evenly spaced steps that the figures below come from.
        rows_per_step: Packed micro-batch rows of a step.
        micro_steps: Micro-steps of a rank in a step.
        packing_efficiency: Tokens over the capacity of the rows they are packed into.
        packing_bound: An efficiency that no packing of the same steps can exceed.
        padding: Share of all positions that is computed for nothing.
        imbalance: How much longer a micro-step takes than with perfectly even ranks, as a share.
        sources: What is taken from each source.
        warnings: Sentences for a person.
    """

    steps: int
    steps_per_epoch: int
    examples: int
    tokens: int
    trained_tokens: int
    estimated: bool
    sampled_steps: int
    rows_per_step: float
    micro_steps: float
    packing_efficiency: float
    packing_bound: float
    padding: float
    imbalance: float
    sources: tuple[SourceShare, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def report(plan: Plan, world: int = 1) -> PlanReport:
    """The numbers of a plan on `world` ranks, from lengths alone."""
    steps = sorted({step * plan.steps // _SAMPLED_STEPS for step in range(_SAMPLED_STEPS)})
    layout = np.array([_layout(plan, step, world) for step in steps])
    rows, bound, micro_steps, tokens, padding, slowest, mean = layout.sum(axis=0).tolist()
    sources, estimated = _sources(plan)
    efficiency = tokens / (rows * plan.capacity)
    return PlanReport(
        steps=plan.steps,
        steps_per_epoch=plan.steps_per_epoch,
        examples=plan.span(plan.steps)[0],
        tokens=sum(source.tokens for source in sources),
        trained_tokens=sum(source.trained_tokens for source in sources),
        estimated=estimated,
        sampled_steps=len(steps),
        rows_per_step=rows / len(steps),
        micro_steps=micro_steps / len(steps),
        packing_efficiency=efficiency,
        packing_bound=tokens / (bound * plan.capacity),
        padding=padding / (tokens + padding),
        imbalance=slowest / mean - 1,
        sources=tuple(sources),
        warnings=tuple(_warnings(plan, world, efficiency, steps[:: max(1, len(steps) // _TRIED_STEPS)])),
    )


def _layout(plan: Plan, step: int, world: int) -> tuple[int, int, int, int, int, int, float]:
    """Rows, fewest possible rows, micro-steps, tokens, padding, cost of the slowest ranks, cost of even ranks."""
    refs = plan.refs(step)
    aligned = plan.aligned(refs)
    dealt = plan.dealt(refs, world)
    totals = plan.totals_of(refs, dealt)
    costs = cost(aligned)
    loads = np.array([[costs[row].sum() for row in rows] for rows in dealt])
    slowest, mean = int(loads.max(axis=0).sum()), float(loads.sum()) / world
    return len(plan.rows(step)), lower_bound(aligned, plan.capacity), loads.shape[1], totals.tokens, totals.padding, slowest, mean


def _sources(plan: Plan) -> tuple[list[SourceShare], bool]:
    draws = plan.span(plan.steps)[0]
    weights: list[float | None] = [None] * len(plan.stores)
    if (shares := plan.order.shares) is not None and len(shares.segments) == 1:
        [first] = shares.segments
        for source, share in zip(first.sources, first.mixture.shares, strict=True):
            weights[source] = share / sum(first.mixture.shares)
    taken = []
    estimated = False
    for index, (store, (passes, rows, scale)) in enumerate(zip(plan.stores, _taken(plan, draws), strict=True)):
        examples = passes * len(store) + round(len(rows) * scale)
        tokens, trained = (
            passes * int(counts.sum(dtype=np.int64)) + round(float(counts[rows].sum(dtype=np.int64)) * scale)
            for counts in (store.lengths, store.trained_tokens)
        )
        estimated = estimated or scale != 1
        taken.append((store.name, weights[index], examples, tokens, trained, examples / max(1, len(store))))
    all_tokens = sum(source[3] for source in taken)
    return [SourceShare(*source, source[2] / draws, source[3] / all_tokens) for source in taken], estimated


def _taken(plan: Plan, draws: int) -> Iterator[tuple[int, Ints, float]]:
    """Of each source: whole passes, rows of the pass that is not finished, and how many rows each of them stands for."""
    order = plan.order
    if isinstance(plan.sampler, Own):  # Nothing is known of it but what it gives.
        refs = plan.sampler.refs(0, min(draws, _COUNTED_ROWS))
        for source in range(len(order.sizes)):
            yield 0, refs.rows[refs.stores == source], draws / max(1, len(refs))
    elif order.shares is None:
        passes, rest = divmod(draws, order.epoch_examples)
        refs = order.refs(draws - rest, min(rest, _COUNTED_ROWS))
        for source in range(len(order.sizes)):
            yield passes, refs.rows[refs.stores == source], rest / max(1, len(refs)) if rest else 1.0
    else:
        for source, (count, size) in enumerate(zip(order.shares.counts(draws), order.sizes, strict=True)):
            passes, rest = divmod(count, size)
            rows = order.pass_rows(source, passes, min(rest, _COUNTED_ROWS))
            yield passes, rows, rest / len(rows) if rest else 1.0


def _warnings(plan: Plan, world: int, efficiency: float, steps: Sequence[int]) -> Iterator[str]:
    if plan.batch.packing != "none" and efficiency < _POOR_PACKING and (better := _better_capacity(plan, steps)):
        capacity, full = better
        yield (
            f"micro-batch rows are only {efficiency:.0%} full, since few examples fit together into "
            f"batch.micro_tokens={plan.capacity}: {capacity} would fill them to {full:.0%}"
        )
    if plan.steps < plan.asked_steps:
        source = None if plan.order.shares is None else plan.order.shares.ended_by
        who = "every example has been seen" if source is None else f"source {plan.stores[source].name!r} has no example left"
        yield f"the run ends after step {plan.steps} of {plan.asked_steps}: {who}"
    if plan.batch.tokens is None and plan.batch.size < world:
        yield f"batch.examples={plan.batch.size} keeps only {plan.batch.size} of {world} ranks busy"


def _better_capacity(plan: Plan, steps: Sequence[int]) -> tuple[int, float] | None:
    """The smallest larger capacity that is used clearly better on some steps, and how full its rows are."""
    lengths = [plan.aligned(plan.refs(step)) for step in steps]

    def full(capacity: int) -> float:
        rows = sum(int(pack(own, capacity, plan.batch.packing).max()) + 1 for own in lengths)
        return sum(int(own.sum()) for own in lengths) / (rows * capacity)

    now = full(plan.capacity)
    tried = ((capacity := int(plan.capacity * factor), full(capacity)) for factor in _LARGER)
    return next(((capacity, share) for capacity, share in tried if share > now + _BETTER_PACKING), None)
