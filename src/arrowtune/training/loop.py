"""The training loop: the whole of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from arrowtune.errors import NonFiniteLoss
from arrowtune.protocols import Backend
from arrowtune.training.schedules import Schedule
from arrowtune.types import Batch, EvalStats, PlannedStep, Progress, StepStats

_ASK_EVERY = 16
"""Micro-batches of an evaluation between two looks whether to leave off: asking all ranks costs about a millisecond."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Everything one optimizer step needs.

    Attributes:
        backend: The model and its optimizer.
        schedule: The learning rate of every step.
        epoch: Epochs done after so many steps.
        rows: Where the examples of a 0-based step come from, in words.
    """

    backend: Backend
    schedule: Schedule
    epoch: Callable[[int], float]
    rows: Callable[[int], str]

    def steps(self, planned: Iterable[PlannedStep]) -> Iterator[StepStats]:
        """Train one step after another, yielding after each.

        Args:
            planned: This rank's steps, in order.
        """
        started = time.perf_counter()
        for one in planned:
            step, totals, lr = one.step, one.totals, self.schedule.lr(one.step)
            try:
                result = self.backend.train_step(one.batches, loss_weight=totals.loss_weight, lr=lr)
            except NonFiniteLoss as error:
                where = f"step {step + 1} (batch {totals.digest}, {totals.examples} examples)"
                raise NonFiniteLoss(f"{where}: {error.message}; its rows are {self.rows(step)}", hint=error.hint) from error
            now = time.perf_counter()
            yield StepStats(
                step=step + 1,
                loss=result.loss_sum / totals.loss_weight,
                loss_weight=totals.loss_weight,
                grad_norm=result.grad_norm,
                lr=lr,
                tokens=totals.tokens,
                trained_tokens=totals.trained_tokens,
                examples=totals.examples,
                padding=totals.padding,
                seconds=now - started,
                batch_digest=totals.digest,
                epoch=self.epoch(step + 1),
                per_source=totals.per_source,
                devices=self.backend.world_size,
                flops=result.flops,
                mfu=self._mfu(result.flops, now - started),
            )
            # Whatever the consumer does between two steps (evaluation, saving) is not the step's time.
            started = time.perf_counter()

    def _mfu(self, flops: float, seconds: float) -> float | None:
        able = self.backend.peak_flops * self.backend.world_size * seconds
        return flops / able if able > 0 and flops > 0 else None


def after(progress: Progress, stats: StepStats) -> Progress:
    """The progress once `stats.step` is done."""
    return Progress(stats.step, progress.tokens + stats.tokens, progress.trained_tokens + stats.trained_tokens)


class EvalSet(Protocol):
    """A named evaluation set, laid out in windows of micro-batches."""

    @property
    def name(self) -> str: ...
    @property
    def loss_weight(self) -> float: ...
    @property
    def trained_tokens(self) -> int: ...

    def batches(self, rank: int, world: int) -> Iterator[Batch]: ...


def evaluate(
    backend: Backend, sets: Iterable[EvalSet], step: int, stopped: Callable[[], bool] | None = None
) -> Iterator[EvalStats]:
    """The exact token-weighted mean loss of each set: one sum over all its tokens, divided once.

    Args:
        backend: The model.
        sets: What to measure.
        step: Optimizer steps done.
        stopped: Asked now and then, on every rank after the same micro-batch, whether to leave off; it must say the same on
            every rank. The set that is being measured then has no result.
    """
    for eval_set in sets:
        started = time.perf_counter()
        watched = _Watched(eval_set.batches(backend.rank, backend.world_size), stopped)
        loss_sum = backend.eval_loss(watched)
        if watched.cut:
            return
        yield EvalStats(
            name=eval_set.name,
            step=step,
            loss=loss_sum / eval_set.loss_weight,
            trained_tokens=eval_set.trained_tokens,
            seconds=time.perf_counter() - started,
        )


class _Watched:
    """Micro-batches that end early when asked to, in between two collectives rather than by an exception amid them."""

    def __init__(self, batches: Iterator[Batch], stopped: Callable[[], bool] | None) -> None:
        self._batches = batches
        self._stopped = stopped
        self.cut = False

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(self._batches, 1):
            yield batch
            if self._stopped is not None and number % _ASK_EVERY == 0 and self._stopped():
                self.cut = True
                return
