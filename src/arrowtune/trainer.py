"""`SFTTrainer`: one rank of a run, from the stores to the last checkpoint and the export."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from arrowtune.config import SFTConfig
from arrowtune.errors import ArrowtuneError, Interrupted
from arrowtune.rank import Inputs, Rank, open_rank
from arrowtune.training.callbacks import Callback
from arrowtune.training.loop import after, evaluate
from arrowtune.training.signals import StopFlag, stop_on_signals
from arrowtune.types import EvalStats, Progress, StepStats


@dataclass(slots=True)
class TrainResult:
    """How a run ended.

    Attributes:
        progress: Steps, tokens and trained tokens of the whole run.
        started_at: The step it continued from; 0 for a fresh run.
        total_steps: Steps of the plan.
        first_loss, last_loss: Training loss of the first and last step of this call; None where no step was left.
        evals: Per evaluation set, its losses in the order they were measured, with their steps.
        checkpoint, export: Where they are; None where none was asked for.
        tokens_per_second: Mean over the steps of this call.
    """

    progress: Progress
    started_at: int
    total_steps: int
    first_loss: float | None = None
    last_loss: float | None = None
    evals: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    checkpoint: Path | None = None
    export: Path | None = None
    tokens_per_second: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether every step of the plan is done."""
        return self.progress.step >= self.total_steps


class SFTTrainer:
    """Trains one run. Every rank of a distributed run makes one and calls the same methods in the same order.

        with SFTTrainer(SFTConfig.load("run.yaml")) as trainer:
            result = trainer.train()

    Those who own their loop write `for stats in trainer.steps(): ...`; tracking, evaluation and checkpoints happen all the same.

    Args:
        config: The run.
        callbacks: See `arrowtune.training.callbacks.Callback`.
        inputs: What a launcher has prepared already; without it `setup` prepares the data and takes the run folder's lock.
    """

    def __init__(self, config: SFTConfig, callbacks: Sequence[Callback] = (), *, inputs: Inputs | None = None) -> None:
        self.config = config
        self.callbacks = tuple(callbacks)
        self._inputs = inputs
        self._rank: Rank | None = None
        self._stack = ExitStack()
        self._stop = False
        self._flag = StopFlag()
        self._result: TrainResult | None = None

    def setup(self) -> SFTTrainer:
        """Prepare what is missing, load the model, restore the newest checkpoint.

        Raises:
            ArrowtuneError: Whatever is wrong with the run, its data, its model or its checkpoint.
        """
        if self._rank is None:
            self._rank = self._stack.enter_context(open_rank(self.config, self._inputs))
            self._result = TrainResult(self._rank.progress, self._rank.progress.step, self._rank.plan.steps)
        return self

    def shutdown(self) -> None:
        """Flush the trackers and give the devices back. Safe to call twice."""
        self._stack.close()
        self._rank = None

    def __enter__(self) -> SFTTrainer:
        return self.setup()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, ArrowtuneError) and self._rank is not None:
            self._rank.tracker.event(self.progress.step, "error", message=error.message)
        self.shutdown()

    @property
    def rank(self) -> Rank:
        """The opened rank: plan, stores, backend."""
        if self._rank is None:
            raise RuntimeError("call setup() first, or use the trainer as a context manager")
        return self._rank

    @property
    def result(self) -> TrainResult:
        """How far the run has come."""
        self.rank  # noqa: B018 - says what to do when setup() is missing
        assert self._result is not None
        return self._result

    @property
    def progress(self) -> Progress:
        """The position in the data."""
        return self.result.progress

    def stop(self) -> None:
        """End after the current step, with a checkpoint."""
        self._stop = True

    def train(self) -> TrainResult:
        """Run all steps that are left.

        Raises:
            Interrupted: SIGTERM or SIGINT ended the run; a checkpoint was saved.
        """
        with stop_on_signals() as self._flag:
            for _ in self.steps():
                pass
        return self.result

    def steps(self) -> Iterator[StepStats]:
        """Train step by step. Tracking, due evaluations and checkpoints are done before a step is yielded."""
        rank, result = self.rank, self.result
        last = min(rank.plan.steps, self.config.train.max_steps or rank.plan.steps)
        if result.progress.step >= last:
            rank.tracker.event(result.progress.step, "finished", total_steps=rank.plan.steps)
            return
        self._start()
        seconds, tokens = 0.0, 0
        with rank.batches(result.progress.step, last) as batches:
            for stats in rank.loop.steps(batches):
                seconds, tokens = seconds + stats.seconds, tokens + stats.tokens
                result.tokens_per_second = tokens / seconds if seconds else 0.0
                self._after_step(stats, last)
                yield stats
                if self._stopping():
                    break
        self._finish()

    def _start(self) -> None:
        for callback in self.callbacks:
            callback.on_start(self)
        if self.config.eval.at_start and self.progress.step == 0:
            self._evaluate()

    def _after_step(self, stats: StepStats, last: int) -> None:
        result, config = self.result, self.config
        result.progress = after(result.progress, stats)
        result.first_loss = stats.loss if result.first_loss is None else result.first_loss
        result.last_loss = stats.loss
        self.rank.tracker.train(stats)
        for callback in self.callbacks:
            callback.on_step(self, stats)
        if stats.step == last:
            return
        if _due(config.eval.every, stats.step):
            self._evaluate()
        if _due(config.checkpoint.every, stats.step):
            self._save()
        if _due(config.export.every, stats.step):
            self.rank.export(f"export-{stats.step}", config.export.dtype, stats.step)

    def _stopping(self) -> bool:
        wishes = self.rank.agree((self._flag.signum or 0, self._stop))
        self._flag.signum = max(signum for signum, _ in wishes) or None
        self._stop = any(stop for _, stop in wishes)
        return self._stop or self._flag.signum is not None

    def _finish(self) -> None:
        config, rank = self.config, self.rank
        if self._flag.signum is not None:
            raise self._interrupted(self._flag.signum)
        if config.eval.at_end or _due(config.eval.every, self.progress.step):
            self._evaluate()
        if (
            config.checkpoint.at_end
            or self._stop
            or self.progress.step < rank.plan.steps
            or _due(config.checkpoint.every, self.progress.step)
        ):
            self._save()
        if config.export.at_end:
            self.result.export = rank.export("export", config.export.dtype, self.progress.step)
        rank.tracker.event(self.progress.step, "end", finished=self.result.finished)
        for callback in self.callbacks:
            callback.on_end(self)

    def _interrupted(self, signum: int) -> Interrupted:
        saved = self._save()
        where = f"the checkpoint is {saved}" if saved else "it could not be saved, and the last checkpoint is older"
        return Interrupted(
            signum,
            f"stopped by {signal.Signals(signum).name} after step {self.progress.step}; {where}: "
            "the same command continues from it",
        )

    def _evaluate(self) -> None:
        rank = self.rank
        for stats in evaluate(rank.backend, rank.eval_sets, self.progress.step):
            self.result.evals.setdefault(stats.name, []).append((stats.step, stats.loss))
            rank.tracker.evaluated(stats)
            for callback in self.callbacks:
                callback.on_evaluated(self, stats)

    def evaluate(self) -> list[EvalStats]:
        """Measure every evaluation set now, without tracking."""
        return list(evaluate(self.rank.backend, self.rank.eval_sets, self.progress.step))

    def _save(self) -> Path | None:
        saved = self.rank.save(self.progress)
        if saved is not None:
            self.result.checkpoint = saved
            for callback in self.callbacks:
                callback.on_saved(self, saved)
        return saved


def _due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0
