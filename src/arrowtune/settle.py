"""What is settled before any rank starts: the resolved run, its stores, its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arrowtune.backends.sizes import check_length, read_config
from arrowtune.config import SFTConfig
from arrowtune.errors import CheckpointError
from arrowtune.ingest import Ingested, examples_of, ingest
from arrowtune.launch.devices import count_devices
from arrowtune.plan import Plan
from arrowtune.plan.mixing import Mixing
from arrowtune.protocols import Examples
from arrowtune.resolve import Derived, Resolved, resolve
from arrowtune.runfolder import RunFolder
from arrowtune.training.complete import last_marked, read_checkpoint
from arrowtune.training.ending import Ending, has_ended
from arrowtune.training.schedules import warmup_steps
from arrowtune.types import Progress


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is settled once, before any rank starts: the resolved run and its stores."""

    run: Resolved
    data: Ingested


def settle(config: SFTConfig, *, progress: Any = None) -> Inputs:
    """Resolve the run and prepare what is missing.

    Raises:
        ConfigError: The run contradicts itself.
        DataError: A source, its rows or its template.
    """
    check_length(read_config(config.model), config.data.max_length)
    devices, gpu = count_devices()
    run = resolve(config, devices=devices, gpu=gpu)
    return Inputs(run, ingest(run, progress=progress))


def build_plan(run: Resolved, stores: Sequence[Examples], *, packs: bool = True) -> Plan:
    """The plan of the training stores. A model that cannot keep documents apart gets one document per row."""
    config = run.config
    data = config.data
    sources = [source.config for source in run.train_sources()]
    weights = [source.weight for source in sources if source.weight is not None]
    batch = config.batch if packs else config.batch.model_copy(update={"packing": "none"})
    return Plan.build(
        stores,
        mixing=Mixing(
            weights=weights or None,
            schedule=[(entry.until, entry.weights) for entry in data.weight_schedule],
            max_passes=[source.max_passes for source in sources],
            exhausted=data.exhausted,
        ),
        sampler=data.sampler,
        sampler_options=data.sampler_options,
        batch=batch,
        capacity=run["batch.micro_tokens"],
        seed=config.train.seed,
        epochs=config.train.epochs if config.train.steps or config.train.epochs else 1.0,
        steps=config.train.steps,
        cache=Path(run["data.cache_dir"]) / "steps",
    )


def with_plan(run: Resolved, plan: Plan, *, why_not: str = "") -> Resolved:
    """The resolved run with the numbers that need the data."""
    train, schedule = run.config.train, run.config.schedule
    if train.steps is not None:
        steps = Derived(plan.steps, "as written")
    else:
        epochs = train.epochs if train.epochs is not None else 1
        batch = run.config.batch
        size = f"batch.examples={batch.size}, rounded up" if batch.tokens is None else f"batch.tokens={batch.tokens}"
        per_epoch = f"{plan.examples_per_epoch} examples / {size}"
        steps = Derived(plan.steps, f"{epochs:g} epochs of {plan.steps_per_epoch} steps ({per_epoch})")
    warmup = Derived(warmup_steps(schedule.warmup, plan.steps), "share of all steps" if schedule.warmup < 1 else "as written")
    packing = Derived(plan.batch.packing, why_not or "as written")
    return run.with_derived(train__steps=steps, schedule__warmup=warmup, batch__packing=packing)


def train_stores(config: SFTConfig, data: Ingested) -> list[Examples]:
    """What the training sources give to the run, in the order of the run file."""
    return examples_of(config, data, "train")


def last_step(config: SFTConfig, plan: Plan) -> int:
    """The step at which the run ends."""
    return min(plan.steps, config.train.max_steps or plan.steps)


def ending_of(config: SFTConfig, data: Ingested, plan: Plan) -> Ending:
    """What the run wants to have been done when it ends."""
    return Ending(
        folder=config.run_dir,
        plan=plan.fingerprint,
        steps=plan.steps,
        eval_sets={found.name: found.identity for found in examples_of(config, data, "eval")},
        eval=config.eval,
        checkpoint=config.checkpoint,
        export=config.export,
    )


def finished_already(inputs: Inputs) -> tuple[Progress, int] | None:
    """Where the run stands and the steps of its plan if nothing is left to do; else, or where that is for the ranks to say, None.

    Neither reads a checkpoint nor loads the model: it only looks whether everything is there.
    """
    config = inputs.run.config
    if config.checkpoint.resume != "auto" or not has_ended(config.run_dir):
        return None
    step, shift = _newest(RunFolder(config.run_dir))
    plan = build_plan(inputs.run, train_stores(config, inputs.data)).shifted(shift)
    done = ending_of(config, inputs.data, plan).finished(last_step(config, plan), step)
    return None if done is None else (done, plan.steps)


def _newest(folder: RunFolder) -> tuple[int | None, int]:
    """The step of the checkpoint that was saved last, None where there is none, -1 where it is damaged; and its plan's shift."""
    newest = last_marked(folder.checkpoints)
    if newest is None:
        return None, 0
    try:
        found = read_checkpoint(newest, digests=False)
    except CheckpointError:
        return -1, 0
    return found.step, int(found.state.get("plan_shift", 0))
