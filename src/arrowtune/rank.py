"""What one rank of a run holds: stores, plan, backend, checkpoints and, on rank 0, trackers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arrowtune.backends.sizes import check_length
from arrowtune.config import SFTConfig
from arrowtune.errors import CheckpointError, ConfigError
from arrowtune.ingest import Ingested, private_stores
from arrowtune.launch.wait import lead_and_follow
from arrowtune.model import eval_plans, export_model, open_model
from arrowtune.plan import EvalPlan, Loader, Plan
from arrowtune.protocols import Backend, Tracker
from arrowtune.resolve import Resolved
from arrowtune.runfolder import RunFolder, write_json
from arrowtune.settle import Inputs, build_plan, ending_of, last_step, settle, train_stores, with_plan
from arrowtune.track import open_trackers
from arrowtune.training.checkpoint import Checkpoint, Checkpoints
from arrowtune.training.ending import Done, Ending
from arrowtune.training.export import prune_exports
from arrowtune.training.loop import Loop
from arrowtune.training.schedules import Schedule
from arrowtune.training.together import leader, together
from arrowtune.training.tokenizer import keep_tokenizer
from arrowtune.types import PlannedStep, Progress

_ROWS_NAMED = 5


@dataclass(slots=True)
class Rank:
    """One opened rank.

    Attributes:
        run: The resolved run, the plan's numbers included.
        plan: Which examples every step sees.
        last: The step at which the run ends.
        eval_sets: The evaluation sets, in order.
        backend: The model.
        loop: Turns micro-batches into steps.
        ending: What the end of the run owes.
        tracker: Where metrics go; silent on every rank but 0, and where nothing is left to do.
        progress: Where the run stands when it is opened.
        found: The checkpoint it continues from.
        finished: Whether nothing is left to do; nothing is written then.
        trained_with: What every checkpoint says of tokenizer, template and masks.
    """

    run: Resolved
    folder: RunFolder
    plan: Plan
    last: int
    eval_sets: list[EvalPlan]
    backend: Backend
    loop: Loop
    checkpoints: Checkpoints
    ending: Ending
    tracker: Tracker
    data: Ingested
    progress: Progress
    found: Checkpoint | None
    finished: bool
    trained_with: Mapping[str, Any]

    @contextmanager
    def steps(self, start: int, stop: int) -> Iterator[Iterator[PlannedStep]]:
        """What this rank needs for the 0-based steps `[start, stop)`, made ahead by a thread."""
        with Loader(self.plan, self.backend.rank, self.backend.world_size, start, stop) as loader:
            yield loader

    def agree(self, value: Any) -> list[Any]:
        """The value of every rank."""
        return [value] if self.backend.world_size == 1 else self.backend.gather(value)

    def save(self, progress: Progress) -> Path:
        """Save a checkpoint.

        Raises:
            CheckpointError: It could not be saved; the older ones are as they were.
        """
        state = {
            "progress": {"step": progress.step, "tokens": progress.tokens, "trained_tokens": progress.trained_tokens},
            "plan": self.plan.fingerprint,
            "total_steps": self.plan.steps,
            "plan_shift": self.plan.shift,
            **self.trained_with,
        }
        path = self.checkpoints.save(progress.step, state, self.backend.save)
        self.tracker.event(progress.step, "checkpoint", path=str(path))
        return path

    def export(self, name: str, step: int) -> Path:
        """Write a model folder that `transformers` loads, complete or not at all.

        Raises:
            ExportError: It could not be written.
        """
        out = self.folder.path / name
        how = self.run.config.export
        for note in export_model(self.backend, out, how.dtype, self.data, step=step, merge_lora=how.merge_lora):
            self.tracker.event(step, "note", message=note)
        self.tracker.event(step, "export", path=str(out))
        return out

    def prune_exports(self, step: int) -> None:
        """Keep the newest `checkpoint.keep` of the exports that were written during the run."""
        keep = self.run.config.checkpoint.keep
        self._or_warn(step, lambda: prune_exports(self.folder.path, keep=keep, step=step), "an older export could not be removed")

    def done(self, step: int) -> Done:
        """What was done so far at the end of the run. Every rank calls it."""
        return leader(self.backend, lambda: self.ending.done(step))

    def note(self, progress: Progress, done: Done) -> None:
        """Write down what was done at the end of the run; what cannot be written down is done again by the next start."""
        self._or_warn(progress.step, lambda: self.ending.note(progress, done), "the end of the run could not be written down")

    def _or_warn(self, step: int, act: Callable[[], None], failure: str) -> None:
        """Act on rank 0; what fails costs space or time, not the run."""
        if self.backend.rank == 0:
            try:
                act()
            except OSError as error:
                self.tracker.event(step, "warning", message=f"{failure}: {error.strerror or error}")


@contextmanager
def open_rank(config: SFTConfig, inputs: Inputs | None) -> Iterator[Rank]:
    """Open one rank: load the model, lay out the plan, restore the checkpoint that the run continues from.

    Args:
        config: The run.
        inputs: From a launcher; without it the data is prepared here, under the run folder's lock.
    """
    with ExitStack() as stack:
        folder = RunFolder(config.run_dir)

        def lead() -> Inputs:
            stack.enter_context(folder.lock())
            stack.enter_context(private_stores(config))
            return settle(config)

        yield _open(config, inputs or lead_and_follow(lead), folder, stack)


def _open(config: SFTConfig, inputs: Inputs, folder: RunFolder, stack: ExitStack) -> Rank:
    run, data = inputs.run, inputs.data
    backend = open_model(config)
    stack.callback(backend.close)
    longer = check_length(backend.model_config, config.data.max_length)
    stores = train_stores(config, data)
    plan = build_plan(run, stores, packs=not backend.why_not_packed)
    checkpoints = Checkpoints(folder.checkpoints, keep=config.checkpoint.keep, ranks=backend)
    found = _resume_point(config, checkpoints, ending_of(config, data, plan), backend)
    plan, changes = _continued(found, plan, allow_new=config.checkpoint.allow_new_plan)
    run = with_plan(run, plan, why_not=backend.why_not_packed)
    ending, last = ending_of(config, data, plan), last_step(config, plan)
    progress = _restore(found, backend) if found else Progress()
    done = leader(backend, lambda: ending.finished(last, found.step if found else None))
    trackers: list[Tracker] = [open_trackers((), folder.path, plan.steps, progress.step)]
    trained_with: Mapping[str, Any] = {}
    stack.callback(lambda: trackers[-1].close())
    if done is None:
        trained_with = leader(backend, lambda: _begin(run, data, ending, progress, last, trackers))
        for event, fields in _opening(found, checkpoints.passed_over, plan, changes, backend):
            trackers[-1].event(progress.step, event, **fields)
        if longer:
            trackers[-1].event(progress.step, "warning", message=longer)
    return Rank(
        run=run,
        folder=folder,
        plan=plan,
        last=last,
        eval_sets=eval_plans(run, data, backend),
        backend=backend,
        loop=_loop(config, plan, stores, backend),
        checkpoints=checkpoints,
        ending=ending,
        tracker=trackers[-1],
        data=data,
        progress=progress if done is None else done,
        found=found,
        finished=done is not None,
        trained_with=trained_with,
    )


def _loop(config: SFTConfig, plan: Plan, stores: Sequence[Any], backend: Backend) -> Loop:
    return Loop(
        backend,
        Schedule.build(config.schedule, peak=config.optimizer.lr, total_steps=plan.steps),
        plan.epoch,
        lambda step: _rows(plan, stores, step),
    )


def _begin(
    run: Resolved, data: Ingested, ending: Ending, progress: Progress, last: int, trackers: list[Tracker]
) -> Mapping[str, Any]:
    """Open the trackers and write what a run folder says of its run; rank 0 alone.

    Returns:
        What checkpoints say of tokenizer, template and masks.
    """
    config, folder = run.config, RunFolder(run.config.run_dir)
    trackers.append(open_trackers(config.track, folder.path, run["train.steps"], progress.step))
    try:
        if progress.step < last:
            ending.forget()
        # Relative paths of the run mean something only together with the folder it was started in.
        write_json(folder.resolved, {**run.to_json(), "started_in": os.getcwd()})
        kept = keep_tokenizer(folder.tokenizers, data.tokenizer.folder, data.tokenizer.chat_template)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"the run folder {folder.path} cannot be written: {reason}", hint="make room on the disk") from error
    return {"tokenizer": kept, "rendering": data.spec.identity()}


def _resume_point(config: SFTConfig, checkpoints: Checkpoints, ending: Ending, backend: Backend) -> Checkpoint | None:
    """The checkpoint that `checkpoint.resume` asks for."""
    choice = config.checkpoint.resume
    if choice == "auto":
        return checkpoints.newest()
    if choice != "never":
        return checkpoints.at(Path(choice))
    there = checkpoints.latest() or leader(backend, lambda: ending.folder if ending.read() else None)
    if there is not None:
        raise ConfigError(
            f"checkpoint.resume is never, but {there} is there",
            hint="choose another output_dir, remove the old run's folder, or let checkpoint.resume be auto",
        )
    return None


def _continued(found: Checkpoint | None, plan: Plan, *, allow_new: bool) -> tuple[Plan, list[str]]:
    """The plan as it goes on from a checkpoint, and what is otherwise than when that was saved.

    Raises:
        CheckpointError: The plan is another one, and that is not allowed, or nothing of it is left.
    """
    if found is None:
        return plan, []
    if lacks := [name for name in ("plan", "progress") if not found.state.get(name)]:
        raise CheckpointError(
            f"{found.path} does not say where in the data it stands: it has no {' and no '.join(lacks)}",
            hint="continue from another checkpoint with checkpoint.resume, or give this run another output_dir",
        )
    changes = plan.differences(found.state["plan"])
    if not changes:
        return plan.shifted(int(found.state.get("plan_shift", 0))), []
    if not allow_new:
        raise CheckpointError(
            f"{found.path} was saved for another plan: {'; '.join(changes)}",
            hint="undo the change, give this run another name or output_dir, or go on with the new plan: --allow-new-plan",
        )
    tokens = int(found.state["progress"]["tokens"])
    there = plan.step_at(tokens)
    if there >= plan.steps:
        raise CheckpointError(
            f"{found.path} has seen {tokens} tokens, and the {plan.steps} steps of the new plan have no more than that",
            hint="raise train.epochs or train.steps",
        )
    return plan.shifted(there - found.step), changes


def _restore(checkpoint: Checkpoint, backend: Backend) -> Progress:
    """Load a checkpoint."""
    together(backend, lambda: backend.load(checkpoint.path))
    return Progress(**checkpoint.state["progress"])


def _opening(
    found: Checkpoint | None, passed_over: Sequence[str], plan: Plan, changes: Sequence[str], backend: Backend
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The first events of a run."""
    told: dict[str, Any] = {"total_steps": plan.steps, "world_size": backend.world_size, "packing": plan.batch.packing}
    if found is not None:
        told["checkpoint"] = str(found.path)
    if backend.why_not_packed:
        told["message"] = backend.why_not_packed
    yield "resume" if found else "start", told
    if found is not None and changes:
        yield (
            "new_plan",
            {
                "changes": "; ".join(changes),
                "tokens": found.state["progress"]["tokens"],
                "step_of_plan": found.step + plan.shift,
            },
        )
    for note in backend.notes:
        yield "note", {"message": note}
    for reason in passed_over:
        yield "warning", {"message": f"passed over: {reason}"}
    before = found.state.get("total_steps", plan.steps) if found else plan.steps
    if before != plan.steps:
        message = (
            f"the run had {before} steps and now has {plan.steps}: learning rates from here on are those of {plan.steps} steps"
        )
        yield "warning", {"message": message}


def _rows(plan: Plan, stores: Sequence[Any], step: int) -> str:
    """Where the first examples of a 0-based step come from."""
    refs = plan.refs(step)
    pairs = list(zip(refs.stores.tolist(), refs.rows.tolist(), strict=True))
    named = [f"{stores[store].name}: {stores[store][row].origin}" for store, row in pairs[:_ROWS_NAMED]]
    rest = len(pairs) - len(named)
    return "; ".join(named) + (f"; and {rest} more" if rest else "")
