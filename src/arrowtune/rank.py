"""What one rank of a run holds: stores, plan, backend, checkpoints and, on rank 0, trackers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arrowtune.backends import open_backend
from arrowtune.config import SFTConfig
from arrowtune.data.store import Store
from arrowtune.errors import CheckpointError, ConfigError
from arrowtune.ingest import Ingested, ingest, private_stores
from arrowtune.launch.devices import count_devices
from arrowtune.launch.wait import lead_and_follow
from arrowtune.plan import EvalPlan, Loader, Plan
from arrowtune.protocols import Backend, Examples, Tracker
from arrowtune.resolve import Derived, Resolved, resolve
from arrowtune.runfolder import RunFolder, read_json, write_json
from arrowtune.track import open_trackers
from arrowtune.training.checkpoint import Checkpoint, Checkpoints
from arrowtune.training.export import check_replaceable, finish_export
from arrowtune.training.loop import Loop
from arrowtune.training.schedules import Schedule, warmup_steps
from arrowtune.types import Batch, Progress


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is settled once, before any rank starts: the resolved run and its stores."""

    run: Resolved
    data: Ingested


def settle(config: SFTConfig, *, progress: Any = None) -> Inputs:
    """Resolve the run and prepare what is missing."""
    devices, gpu = count_devices()
    run = resolve(config, devices=devices, gpu=gpu)
    return Inputs(run, ingest(run, progress=progress))


def build_plan(run: Resolved, stores: Sequence[Examples], *, packs: bool = True) -> Plan:
    """The plan of the training stores. A model that cannot keep documents apart gets one document per row."""
    config = run.config
    weights = [source.config.weight for source in run.train_sources()]
    batch = config.batch if packs else config.batch.model_copy(update={"packing": "none"})
    return Plan.build(
        stores,
        weights=None if None in weights else [float(weight) for weight in weights if weight is not None],
        batch=batch,
        capacity=run["batch.micro_tokens"],
        seed=config.train.seed,
        epochs=config.train.epochs if config.train.steps or config.train.epochs else 1.0,
        steps=config.train.steps,
    )


@dataclass(slots=True)
class Rank:
    """One opened rank.

    Attributes:
        run: The resolved run, the plan's numbers included.
        plan: Which examples every step sees.
        eval_sets: The evaluation sets, in order.
        backend: The model.
        loop: Turns micro-batches into steps.
        tracker: Where metrics go; silent on every rank but 0.
        progress: Where the run stands when it is opened.
    """

    run: Resolved
    folder: RunFolder
    plan: Plan
    eval_sets: list[EvalPlan]
    backend: Backend
    loop: Loop
    checkpoints: Checkpoints
    tracker: Tracker
    data: Ingested
    progress: Progress

    @contextmanager
    def batches(self, start: int, stop: int) -> Iterator[Iterator[tuple[int, Sequence[Batch]]]]:
        """This rank's micro-batches of the 0-based steps `[start, stop)`, made ahead by a thread."""
        with Loader(self.plan, self.backend.rank, self.backend.world_size, start, stop) as loader:
            yield loader

    def agree(self, value: Any) -> list[Any]:
        """The value of every rank."""
        return [value] if self.backend.world_size == 1 else self.backend.gather(value)

    def save(self, progress: Progress) -> Path | None:
        """Save a checkpoint. A full disk costs this one, not the run; None then."""
        state = {
            "progress": {"step": progress.step, "tokens": progress.tokens, "trained_tokens": progress.trained_tokens},
            "plan": self.plan.fingerprint,
        }
        try:
            path = self.checkpoints.save(progress.step, state, self.backend.save)
        except CheckpointError as error:
            self.tracker.event(progress.step, "warning", message=error.message)
            return None
        self.tracker.event(progress.step, "checkpoint", path=str(path))
        return path

    def export(self, name: str, dtype: str, step: int) -> Path:
        """Write a model folder that `transformers` loads, complete or not at all."""
        out = export_model(self.backend, self.folder.path / name, dtype, self.run.config, self.data)
        self.tracker.event(step, "export", path=str(out))
        return out


@contextmanager
def open_rank(config: SFTConfig, inputs: Inputs | None) -> Iterator[Rank]:
    """Open one rank: load the model, lay out the plan, restore the checkpoint that the run continues from.

    Args:
        config: The run.
        inputs: From a launcher; without it the data is prepared here, under the run folder's lock.
    """
    with ExitStack() as stack:
        folder = RunFolder(config.run_dir)
        if inputs is None:
            stack.enter_context(folder.lock_on_rank_0())
            if os.environ.get("RANK", "0") == "0":
                stack.enter_context(private_stores(config))
            inputs = lead_and_follow(lambda: settle(config))
        yield _open(config, inputs, folder, stack)


def _open(config: SFTConfig, inputs: Inputs, folder: RunFolder, stack: ExitStack) -> Rank:
    run, data = inputs.run, inputs.data
    backend = open_model(config)
    stack.callback(backend.close)
    plan = build_plan(
        run, [Store(store.path, name=store.name) for store in data.of_role("train")], packs=not backend.why_not_packed
    )
    run = with_plan(run, plan, why_not=backend.why_not_packed)
    checkpoints = Checkpoints(folder.checkpoints, keep=config.checkpoint.keep, ranks=backend)
    found = _resume_point(config, checkpoints)
    progress = _restore(found, plan, backend) if found else Progress()
    tracker = open_trackers(config.track if backend.rank == 0 else (), folder.path, plan.steps, progress.step)
    stack.callback(tracker.close)
    if backend.rank == 0:
        write_json(folder.resolved, run.to_json())
        tracker.event(progress.step, "resume" if found else "start", **_opening(found, plan, backend))
        for reason in checkpoints.passed_over:
            tracker.event(progress.step, "warning", message=f"passed over: {reason}")
    schedule = Schedule.build(config.schedule, peak=config.optimizer.lr, total_steps=plan.steps)
    return Rank(
        run=run,
        folder=folder,
        plan=plan,
        eval_sets=eval_plans(run, data, backend),
        backend=backend,
        loop=Loop(backend, schedule, lambda step: plan.totals(step, backend.world_size), plan.steps_per_epoch),
        checkpoints=checkpoints,
        tracker=tracker,
        data=data,
        progress=progress,
    )


def open_model(config: SFTConfig) -> Backend:
    """The model of the run on its devices, before any checkpoint."""
    return open_backend(config.model, config.strategy, config.optimizer, seed=config.train.seed)


def eval_plans(run: Resolved, data: Ingested, backend: Backend) -> list[EvalPlan]:
    """The evaluation sets, in the order of the run file."""
    packing = "none" if backend.why_not_packed else run.config.batch.packing
    return [EvalPlan(Store(store.path, name=store.name), run["batch.micro_tokens"], packing) for store in data.of_role("eval")]


@contextmanager
def restored_model(config: SFTConfig, path: Path) -> Iterator[tuple[Backend, Checkpoint]]:
    """The model of a checkpoint, on its devices."""
    backend = open_model(config)
    try:
        checkpoint = Checkpoints(path.parent, keep=1, ranks=backend).at(path)
        backend.load(path)
        yield backend, checkpoint
    finally:
        backend.close()


def export_model(backend: Backend, out: Path, dtype: str, config: SFTConfig, data: Ingested) -> Path:
    """Write the model as it stands to `out`; complete or absent. Every rank calls it."""
    final = out.absolute()
    check_replaceable(final)
    partial = final.with_name(f".{final.name}.partial")
    if backend.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
    backend.export(partial, dtype)
    if backend.rank == 0:
        finish_export(
            partial,
            final,
            tokenizer_folder=data.tokenizer.folder,
            chat_template=data.tokenizer.chat_template,
            stop_token_ids=data.stop_token_ids(),
            generation_config=generation_config(config),
        )
    backend.gather(None)
    return out


def generation_config(config: SFTConfig) -> dict[str, Any]:
    """What the base model's folder says about generation; nothing for a hub id or the tiny model."""
    path = Path(config.model.path) / "generation_config.json"
    return read_json(path) if path.is_file() else {}


def with_plan(run: Resolved, plan: Plan, *, why_not: str = "") -> Resolved:
    """The resolved run with the numbers that need the data."""
    train, schedule = run.config.train, run.config.schedule
    if train.steps is not None:
        steps = Derived(plan.steps, "as written")
    else:
        epochs = train.epochs if train.epochs is not None else 1
        per_epoch = f"{plan.examples_per_epoch} examples / batch.examples={run.config.batch.examples}, rounded up"
        steps = Derived(plan.steps, f"{epochs:g} epochs of {plan.steps_per_epoch} steps ({per_epoch})")
    warmup = Derived(warmup_steps(schedule.warmup, plan.steps), "share of all steps" if schedule.warmup < 1 else "as written")
    packing = Derived(plan.batch.packing, why_not or "as written")
    return run.with_derived(train__steps=steps, schedule__warmup=warmup, batch__packing=packing)


def _resume_point(config: SFTConfig, checkpoints: Checkpoints) -> Checkpoint | None:
    """The checkpoint that `checkpoint.resume` asks for."""
    choice = config.checkpoint.resume
    if choice not in ("auto", "never"):
        return checkpoints.at(Path(choice))
    newest = checkpoints.newest()
    if newest is not None and choice == "never":
        raise ConfigError(
            f"checkpoint.resume is never, but {newest.path} is there",
            hint="choose another output_dir, remove the old run's folder, or let checkpoint.resume be auto",
        )
    return newest


def _restore(checkpoint: Checkpoint, plan: Plan, backend: Backend) -> Progress:
    """Load a checkpoint that was saved for the same plan."""
    differences = plan.differences(checkpoint.state["plan"])
    if differences:
        changes = "; ".join(differences)
        raise CheckpointError(
            f"{checkpoint.path} was saved for another plan: {changes}",
            hint="undo the change, or give this run another name or output_dir",
        )
    backend.load(checkpoint.path)
    return Progress(**checkpoint.state["progress"])


def _opening(found: Checkpoint | None, plan: Plan, backend: Backend) -> dict[str, Any]:
    """What the first event of a run says."""
    told: dict[str, Any] = {"total_steps": plan.steps, "world_size": backend.world_size, "packing": plan.batch.packing}
    if found is not None:
        told["checkpoint"] = str(found.path)
    if backend.why_not_packed:
        told["message"] = backend.why_not_packed
    return told
