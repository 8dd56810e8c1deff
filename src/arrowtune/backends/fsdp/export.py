"""Writing the weights as `transformers` reads them: safetensors and a configuration that says what they are."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from arrowtune.backends.fsdp.adapters import has_adapters, merged, write_adapters
from arrowtune.backends.fsdp.model import DTYPES
from arrowtune.backends.fsdp.world import World
from arrowtune.errors import ExportError

_LEFTOVERS = ("quantization_config", "_pre_quantization_dtype")


def export_weights(folder: Path, model: PreTrainedModel, dtype: torch.dtype, world: World) -> None:
    """Gather the weights and write them, on rank 0; every rank calls it.

    A model that came from GGUF may still carry the quantizer that read it, and `save_pretrained` refuses models whose
    quantizer cannot write. The weights are plain by then, so they are written through an empty model of the same
    configuration without those leftovers.

    Raises:
        ExportError: The folder cannot be written.
    """
    weights = _gathered(model, trained_only=False)
    if world.rank != 0:
        return
    if has_adapters(model):
        weights = merged(model, weights)
    weights = _cast(weights, dtype)
    with _writes(folder):
        _skeleton(model, dtype).save_pretrained(folder, state_dict=_without_ties(model, weights))
        # As the model came: what is not valid about it is mended, and said, by whoever completes the folder.
        model.generation_config.to_json_file(folder / "generation_config.json")


def export_adapters(folder: Path, model: PreTrainedModel, dtype: torch.dtype, world: World) -> None:
    """Gather the adapters and write them, on rank 0, as peft and transformers load them; every rank calls it.

    Raises:
        ExportError: The folder cannot be written.
    """
    weights = _gathered(model, trained_only=True)
    if world.rank != 0:
        return
    with _writes(folder):
        write_adapters(folder, model, _cast(weights, dtype))
        model.generation_config.to_json_file(folder / "generation_config.json")


def _gathered(model: PreTrainedModel, *, trained_only: bool) -> dict[str, torch.Tensor]:
    """Whole tensors by name, on the CPU of rank 0."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=trained_only)
    state = get_model_state_dict(model, options=options)
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}


def _cast(weights: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}


@contextmanager
def _writes(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).strip().splitlines()[-1]
        raise ExportError(f"the export {folder} cannot be written: {reason}", hint="free some space") from error


def export_dtype(choice: str, stored: torch.dtype) -> torch.dtype:
    """Of the written weights: as asked, or as the model came."""
    return stored if choice == "auto" else DTYPES[choice]


def _skeleton(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    config = copy.deepcopy(model.config)
    for name in _LEFTOVERS:
        if hasattr(config, name):
            delattr(config, name)
    config.dtype = dtype
    config._name_or_path = ""
    # FSDP2 gives the model a class of its own, derived from the one it had: that one may not be known to the auto classes.
    kind = next(base for base in type(model).__mro__ if issubclass(base, PreTrainedModel) and not issubclass(base, FSDPModule))
    with torch.device("meta"):
        skeleton: PreTrainedModel = kind._from_config(config, dtype=dtype)
    return skeleton


def _without_ties(model: PreTrainedModel, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One name for each tensor: safetensors refuses two names for the same memory, and loading ties them again."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return {name: tensor.contiguous() for name, tensor in weights.items() if name not in tied}
