"""What the command line and library users call: prepare, train, evaluate, export, check."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arrowtune.config import SFTConfig
from arrowtune.errors import ConfigError
from arrowtune.ingest import ingest, private_stores
from arrowtune.launch.devices import count_devices
from arrowtune.launch.local import joined, launch
from arrowtune.resolve import Resolved, resolve
from arrowtune.runfolder import RunFolder
from arrowtune.types import EvalStats

if TYPE_CHECKING:
    from arrowtune.checkup import CheckReport
    from arrowtune.data.prepare import PreparedStore
    from arrowtune.settle import Inputs
    from arrowtune.training.result import TrainResult

log = logging.getLogger("arrowtune")


def prepare(config: SFTConfig, *, progress: Any = None) -> list[PreparedStore]:
    """Tokenise every source of the run into its store, or find the store that is there.

    Args:
        config: The run.
        progress: Told of rows, tokens and skips as they come; see `arrowtune.data.progress`.

    Returns:
        One entry for each source, training first, in the order of the run file.

    Raises:
        ConfigError: The run contradicts itself.
        DataError: A source, its rows or the template.
    """
    return list(ingest(_resolve(config, for_training=False), progress=progress).stores)


def check(config: SFTConfig) -> CheckReport:
    """Validate and plan a run without a device and without loading the model.

    Exact where the stores are there; otherwise estimated from the first 1,000 rows of each source.

    Raises:
        ConfigError: The run contradicts itself.
        DataError: A source, its rows or the template.
    """
    from arrowtune.checkup import check_run

    return check_run(_resolve(config))


def train(config: SFTConfig, *, progress: Any = None) -> TrainResult:
    """Prepare what is missing, then train; continues a run that has a checkpoint.

    Raises:
        Interrupted: A signal ended the run after a clean save.
        ArrowtuneError: Whatever else went wrong; the message says what and where.
    """
    from arrowtune.settle import finished_already, settle
    from arrowtune.training.result import TrainResult

    if joined():
        return train_rank(Task(config))
    folder = RunFolder(config.run_dir)
    with folder.lock(), private_stores(config):
        inputs = settle(config, progress=progress)
        if (done := finished_already(inputs)) is not None:
            return TrainResult.of_finished(folder, *done, exported=config.export.at_end)
        result: TrainResult = _launch("train_rank", Task(config, inputs), folder)
    return result


def evaluate(config: SFTConfig, checkpoint: str | Path, *, progress: Any = None) -> list[EvalStats]:
    """The exact token-weighted loss of a checkpoint on every evaluation set of the run.

    The sets are rendered as the run says now; a warning names what was otherwise when the checkpoint was trained.

    Raises:
        ConfigError: The run has no evaluation set.
        CheckpointError: The checkpoint is not complete.
    """
    from arrowtune.origin import changed_since
    from arrowtune.settle import Inputs

    if not config.data.eval:
        raise ConfigError("the run has no evaluation set", hint="add data.eval: [{path: holdout.jsonl}]")
    only_eval = config.model_copy(update={"data": config.data.model_copy(update={"train": ()})})
    run = _resolve(only_eval, for_training=False)
    own = f"stores-{os.getpid()}"  # The run may be training meanwhile.
    with private_stores(config, own):
        inputs = Inputs(run, ingest(run, folder=own, progress=progress))
        if changed := changed_since(Path(checkpoint), inputs.data.spec):
            log.warning("%s was trained with another %s; the sets are measured with the run's", checkpoint, ", ".join(changed))
        measured: list[EvalStats] = _launch("evaluate_rank", Task(only_eval, inputs, Path(checkpoint)), RunFolder(config.run_dir))
    return measured


def export(checkpoint: str | Path, out: str | Path, *, dtype: str = "auto", merge_lora: bool = True) -> Path:
    """Write the model of a checkpoint as a folder that `transformers` loads.

    Its tokenizer and template are those that the run was trained with, whatever has become of the files they came from.

    Args:
        checkpoint: A `step-N` folder of a run.
        out: The folder to write; complete or absent afterwards.
        dtype: `auto` is the dtype the model came with.
        merge_lora: Of a run with `model.lora`: write whole weights; else the adapters alone.

    Raises:
        CheckpointError: The checkpoint is not complete, or not in a run's folder.
        ExportError: The folder cannot be written.
    """
    from arrowtune.model import partial_of
    from arrowtune.origin import run_of, trained_with
    from arrowtune.settle import Inputs

    path, final = Path(checkpoint), Path(out)
    config = run_of(path)
    inputs = Inputs(_resolve(config, for_training=False), trained_with(config, path))
    try:
        notes: list[str] = _launch("export_rank", Task(config, inputs, path, final, dtype, merge_lora), RunFolder(config.run_dir))
    finally:
        shutil.rmtree(partial_of(final.absolute()), ignore_errors=True)
    for note in notes:
        log.warning("%s", note)
    return final


@dataclass(frozen=True, slots=True)
class Task:
    """What a launcher hands to its ranks: addresses and settings, no data."""

    config: SFTConfig
    inputs: Inputs | None = None
    checkpoint: Path | None = None
    out: Path | None = None
    dtype: str = "auto"
    merge_lora: bool = True


def train_rank(task: Task) -> TrainResult:
    """One rank of `train`."""
    from arrowtune.trainer import SFTTrainer

    with SFTTrainer(task.config, inputs=task.inputs) as trainer:
        return trainer.train()


def evaluate_rank(task: Task) -> list[EvalStats]:
    """One rank of `evaluate`."""
    from arrowtune.model import eval_plans, restored_model
    from arrowtune.training.loop import evaluate as measure

    assert task.inputs is not None
    assert task.checkpoint is not None
    with restored_model(task.config, task.checkpoint) as (backend, checkpoint):
        return list(measure(backend, eval_plans(task.inputs.run, task.inputs.data, backend), checkpoint.step))


def export_rank(task: Task) -> list[str]:
    """One rank of `export`; what had to be mended."""
    from arrowtune.model import export_model, restored_model

    assert task.inputs is not None
    assert task.checkpoint is not None
    assert task.out is not None
    with restored_model(task.config, task.checkpoint) as (backend, checkpoint):
        data, step = task.inputs.data, checkpoint.step
        return export_model(backend, task.out, task.dtype, data, step=step, merge_lora=task.merge_lora)


def _launch(entry: str, task: Task, folder: RunFolder) -> Any:
    assert task.inputs is not None
    devices = task.inputs.run["launch.devices_per_node"]
    return launch(f"arrowtune.api:{entry}", task, devices=devices, logs=folder.logs)


def _resolve(config: SFTConfig, *, for_training: bool = True) -> Resolved:
    devices, gpu = count_devices()
    return resolve(config, devices=devices, gpu=gpu, for_training=for_training)
