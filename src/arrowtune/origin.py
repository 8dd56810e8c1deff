"""What a checkpoint was trained with: the run that it belongs to, and the tokenizer and template of that time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arrowtune.config import SFTConfig
from arrowtune.data.render import RenderSpec
from arrowtune.data.tokenizer import read_tokenizer
from arrowtune.errors import CheckpointError, ConfigError
from arrowtune.fingerprint import differences
from arrowtune.ingest import Ingested
from arrowtune.runfolder import RunFolder, read_json
from arrowtune.training.complete import read_marker
from arrowtune.training.tokenizer import kept_tokenizer


def run_of(checkpoint: Path) -> SFTConfig:
    """The run that a checkpoint belongs to, from the `resolved.json` beside its folder.

    A relative `model.path` is the one that the run meant, from the folder where it was started.

    Raises:
        CheckpointError: The checkpoint is in no run's folder.
        ConfigError: The model's folder is gone.
    """
    folder = RunFolder(checkpoint.absolute().parent.parent)
    try:
        told = read_json(folder.resolved)
        tree, started_in = told["config"], told["started_in"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{checkpoint} is not a checkpoint inside a run's folder: {folder.resolved} cannot be read",
            hint="name a folder such as runs/NAME/checkpoints/step-00000100",
        ) from None
    config = SFTConfig.parse({**tree, "output_dir": str(folder.path)}, where=str(folder.resolved))
    model = config.model.model_copy(update={"path": _as_meant(config.model.path, Path(started_in))})
    return config.model_copy(update={"model": model})


def trained_with(config: SFTConfig, checkpoint: Path) -> Ingested:
    """The tokenizer and the template that a checkpoint was trained with, as the run folder has kept them.

    Raises:
        CheckpointError: The checkpoint is not complete, or the copy is gone.
    """
    name = _state_of(checkpoint)["tokenizer"]
    folder = kept_tokenizer(RunFolder(checkpoint.absolute().parent.parent).tokenizers, name)
    return Ingested((), RenderSpec.of(read_tokenizer(folder), config.data, config.tokenizer))


def changed_since(checkpoint: Path, spec: RenderSpec) -> list[str]:
    """What makes ids and masks otherwise than when the checkpoint was trained, by name.

    Raises:
        CheckpointError: The checkpoint is not complete.
    """
    return differences(_state_of(checkpoint)["rendering"], spec.identity())


def _state_of(checkpoint: Path) -> Any:
    state = read_marker(checkpoint)["state"]
    if not {"tokenizer", "rendering"} <= state.keys():
        raise CheckpointError(f"{checkpoint} does not say which tokenizer it was trained with")
    return state


def _as_meant(path: str, started_in: Path) -> str:
    """A path of the run file, seen from where the run was started; a hub id stays one."""
    own = Path(path).expanduser()
    if own.is_absolute() or path == "tiny":
        return path
    if (started_in / own).exists():
        return str(started_in / own)
    if path.startswith(".") or path.count("/") > 1:  # No hub id looks like this.
        raise ConfigError(
            f"the run's model.path {path} was a folder in {started_in}, and is not there any more",
            hint="put the model back, or write its new path into resolved.json",
        )
    return path
