"""`SFTTrainer`: one rank of a run, from the stores to the last checkpoint and the export."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

from arrowtune.config import SFTConfig
from arrowtune.errors import ArrowtuneError, CheckpointError, ExportError, Interrupted
from arrowtune.rank import Rank, open_rank
from arrowtune.settle import Inputs
from arrowtune.training.callbacks import Callback
from arrowtune.training.ending import due
from arrowtune.training.loop import after, evaluate
from arrowtune.training.result import TrainResult
from arrowtune.training.signals import StopFlag
from arrowtune.types import EvalStats, Progress, StepStats


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
        self._evaluated_at = self._saved_at = -1

    def setup(self) -> SFTTrainer:
        """Prepare what is missing, load the model, restore the newest checkpoint.

        Raises:
            ArrowtuneError: Whatever is wrong with the run, its data, its model or its checkpoint.
        """
        if self._rank is None:
            rank = self._rank = self._stack.enter_context(open_rank(self.config, self._inputs))
            self._result = TrainResult(rank.progress, rank.progress.step, rank.plan.steps)
            if rank.finished:
                exported = self.config.export.at_end
                self._result = TrainResult.of_finished(rank.folder, rank.progress, rank.plan.steps, exported=exported)
            elif rank.found is not None and rank.found.path.absolute().parent == rank.folder.checkpoints.absolute():
                self._saved_at, self._result.checkpoint = rank.found.step, rank.found.path
        return self

    def shutdown(self) -> None:
        """Flush the trackers and give the devices back. Safe to call twice."""
        self._stack.close()
        self._rank = None

    def __enter__(self) -> SFTTrainer:
        return self.setup()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, ArrowtuneError) and self._rank is not None:
            event = "stopped" if isinstance(error, Interrupted) else "error"
            self._rank.tracker.event(self.progress.step, event, message=error.message)
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
            CheckpointError: The last checkpoint could not be saved.
            ExportError: The last export could not be written.
        """
        for _ in self.steps():
            pass
        return self.result

    def steps(self) -> Iterator[StepStats]:
        """Train step by step. Tracking, due evaluations and checkpoints are done before a step is yielded.

        After the last step comes what the end of the run owes: a checkpoint, the evaluation, the export. Where a run was
        stopped in between, the next start does what is left of it; where all is done, this does nothing. From the first step
        to the last checkpoint SIGTERM and SIGINT are held back until the step is done and saved.

        Raises:
            ArrowtuneError: As `train`.
        """
        if self.rank.finished:
            return
        for callback in self.callbacks:
            callback.on_start(self)
        if self.config.eval.at_start and self.progress.step == 0:
            self._evaluate()
        self.rank.agree(None)  # No rank holds signals back while another is still setting up.
        self._flag.hold()
        try:
            yield from self._steps()
            failure = self._save_at_end()
            self._flag.pass_on()  # From here on the next start can do again whatever is cut short.
        finally:
            self._flag.release()
        self._finish(failure)

    def _steps(self) -> Iterator[StepStats]:
        rank, result = self.rank, self.result
        seconds, tokens = 0.0, 0
        with rank.steps(result.progress.step, rank.last) as planned:
            for stats in rank.loop.steps(planned):
                seconds, tokens = seconds + stats.seconds, tokens + stats.tokens
                result.tokens_per_second = tokens / seconds if seconds else 0.0
                self._after_step(stats)
                yield stats
                if self._stopping():
                    break

    def _after_step(self, stats: StepStats) -> None:
        result, config = self.result, self.config
        result.progress = after(result.progress, stats)
        result.first_loss = stats.loss if result.first_loss is None else result.first_loss
        result.last_loss = stats.loss
        self.rank.tracker.train(stats)
        for callback in self.callbacks:
            callback.on_step(self, stats)
        if stats.step == self.rank.last:
            return
        if due(config.eval.every, stats.step):
            self._evaluate()
        if due(config.checkpoint.every, stats.step):
            self._attempt(self._save)
        if due(config.export.every, stats.step) and not self._signalled():
            self._attempt(lambda: self.rank.export(f"export-{stats.step}", stats.step))
            self.rank.prune_exports(stats.step)

    def _stopping(self) -> bool:
        return self._signalled() or self._stop

    def _signalled(self) -> bool:
        """Whether any rank has heard a signal; a callback's wish to stop is shared as well."""
        wishes = self.rank.agree((self._flag.signum or 0, self._stop))
        self._flag.signum = max(signum for signum, _ in wishes) or None
        self._stop = any(stop for _, stop in wishes)
        return self._flag.signum is not None

    def _save_at_end(self) -> ArrowtuneError | None:
        """The last checkpoint, or why there is none; raises where a signal has ended the run."""
        failure: ArrowtuneError | None = None
        if self._stop or self._flag.signum is not None or self.rank.ending.wants_checkpoint(self.progress.step):
            failure = self._attempt(self._save)
        if self._signalled():
            raise self._stopped_by_signal(failure)
        return failure

    def _finish(self, failure: ArrowtuneError | None) -> None:
        rank, step = self.rank, self.progress.step
        done = rank.done(step)
        if rank.ending.wants_evaluation(step) and not done.evaluated:
            self._evaluate()
            done = replace(done, evaluated=True)
        rank.note(self.progress, done)
        if self.config.export.at_end and not done.exported:
            failed = self._attempt(self._export)
            rank.note(self.progress, replace(done, exported=failed is None))
            failure = failure or failed
        if failure is not None:
            raise failure
        rank.tracker.event(step, "end", finished=self.result.finished)
        for callback in self.callbacks:
            callback.on_end(self)

    def _attempt(self, act: Callable[[], object]) -> ArrowtuneError | None:
        """Save or export. A full disk costs this one, not the run: it is told, and what to do about it is the caller's."""
        try:
            act()
        except (CheckpointError, ExportError) as error:
            self.rank.tracker.event(self.progress.step, "warning", message=error.message)
            return error
        return None

    def _stopped_by_signal(self, failure: ArrowtuneError | None) -> ArrowtuneError:
        assert self._flag.signum is not None
        stopped = f"stopped by {signal.Signals(self._flag.signum).name} after step {self.progress.step}"
        failure = failure or self._attempt(self._save)
        if failure is None:
            where = f"the checkpoint is {self.result.checkpoint}: the same command continues from it"
            return Interrupted(self._flag.signum, f"{stopped}; {where}")
        newest = self.rank.checkpoints.latest()
        older = f"the newest checkpoint is {newest}" if newest else "there is no older checkpoint"
        return CheckpointError(f"{stopped}, and nothing was saved: {failure.message}; {older}", hint=failure.hint)

    def _evaluate(self) -> None:
        rank, step = self.rank, self.progress.step
        if self._evaluated_at == step:
            return
        for stats in evaluate(rank.backend, rank.eval_sets, step, self._signalled):
            self.result.evals.setdefault(stats.name, []).append((stats.step, stats.loss))
            rank.tracker.evaluated(stats)
            for callback in self.callbacks:
                callback.on_evaluated(self, stats)
        if not self._signalled():
            self._evaluated_at = step

    def evaluate(self) -> list[EvalStats]:
        """Measure every evaluation set now, without tracking.

        Raises:
            CheckpointError: The run was finished before, and left no checkpoint that could be measured.
        """
        found = self.rank.found
        if self.rank.finished and (found is None or found.step != self.progress.step):
            raise CheckpointError(
                f"the run has ended at step {self.progress.step} without a checkpoint: there is no model to measure"
            )
        return list(evaluate(self.rank.backend, self.rank.eval_sets, self.progress.step))

    def _save(self) -> None:
        if self._saved_at == self.progress.step:
            return
        saved = self.rank.save(self.progress)
        self._saved_at, self.result.checkpoint = self.progress.step, saved
        for callback in self.callbacks:
            callback.on_saved(self, saved)

    def _export(self) -> None:
        self.result.export = self.rank.export("export", self.progress.step)
