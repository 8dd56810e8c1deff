"""Saving and restoring model, optimizer and random state, sharded, for any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import PreTrainedModel

from arrowtune.backends.fsdp.world import World
from arrowtune.errors import CheckpointError

# What is frozen is loaded from where it came from.
_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)


def save_state(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, world: World) -> list[Path]:
    """Write this rank's shards into `folder`; every rank calls it.

    Returns:
        The files that this rank wrote.

    Raises:
        CheckpointError: A file could not be written, by this rank or another one.
    """
    try:
        save(_state_of(model, optimizer), checkpoint_id=str(folder))
        save_file(_random_state(world), str(_random_file(folder, world.rank)))
    except (OSError, RuntimeError, SafetensorError, CheckpointException) as error:
        # torch's CheckpointException is no Exception: it would pass by everything that handles errors.
        raise CheckpointError(f"{folder} could not be written: {_reason(error)}") from error
    # torch names the shards of a rank after it; the index is the coordinator's.
    written = [_random_file(folder, world.rank), *folder.glob(f"__{world.rank}_*")]
    return [*written, folder / ".metadata"] if world.rank == 0 else written


def load_state(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, world: World) -> None:
    """Restore what `save_state` wrote, at any number of ranks.

    A rank that did not exist then keeps the random state it was seeded with.

    Raises:
        CheckpointError: The checkpoint is of another model.
    """
    state = _state_of(model, optimizer)
    try:
        load(state, checkpoint_id=str(folder))
    except (RuntimeError, ValueError, KeyError, CheckpointException) as error:
        raise CheckpointError(
            f"{folder} does not fit the model: {_reason(error)}", hint="continue with the model it was saved from"
        ) from error
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=_TRAINED)
    if _random_file(folder, world.rank).exists():
        _restore_random(load_file(str(_random_file(folder, world.rank))), world)


def _state_of(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """This rank's shards of what is trained."""
    weights, moments = get_state_dict(model, optimizer, options=_TRAINED)
    # torch leaves a frozen tensor out under one name only, and a tied one has two.
    frozen = {name for name, one in model.named_parameters(remove_duplicate=False) if not one.requires_grad}
    return {"model": {name: one for name, one in weights.items() if name not in frozen}, "optimizer": moments}


def _reason(error: BaseException) -> str:
    """The first cause as one line; a failure of several ranks carries one for each."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _random_file(folder: Path, rank: int) -> Path:
    return folder / f"random-{rank}.safetensors"


def _random_state(world: World) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if world.device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(world.device)
    return state


def _restore_random(state: dict[str, torch.Tensor], world: World) -> None:
    torch.set_rng_state(state["cpu"])
    if world.device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], world.device)
