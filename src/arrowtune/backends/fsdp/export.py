"""Writing the weights as `transformers` reads them: safetensors and a configuration that says what they are."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import AutoModelForCausalLM, PreTrainedModel

from arrowtune.backends.fsdp.model import DTYPES
from arrowtune.backends.fsdp.world import World
from arrowtune.errors import ExportError

_LEFTOVERS = ("quantization_config", "_pre_quantization_dtype")


def export_weights(folder: Path, model: PreTrainedModel, dtype: torch.dtype, world: World) -> None:
    """Gather the weights and write them, on rank 0; every rank calls it.

    A model that came from GGUF still carries the quantizer that read it, and `save_pretrained` refuses models whose
    quantizer cannot write. The weights are plain by then, so they are written through an empty model of the same
    configuration without those leftovers.

    Raises:
        ExportError: The folder cannot be written.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    gathered = get_model_state_dict(model, options=options)
    if world.rank != 0:
        return
    weights: dict[str, torch.Tensor] = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in gathered.items()
        if isinstance(tensor, torch.Tensor)
    }
    try:
        _skeleton(model, dtype).save_pretrained(folder, state_dict=_without_ties(model, weights))
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ExportError(f"the export {folder} cannot be written: {reason}", hint="free some space") from error


def export_dtype(choice: str, stored: torch.dtype) -> torch.dtype:
    """Of the written weights: as asked, or as the model came."""
    return stored if choice == "auto" else DTYPES[choice]


def _skeleton(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    config = copy.deepcopy(model.config)
    for name in _LEFTOVERS:
        if hasattr(config, name):
            delattr(config, name)
    config.use_cache = True
    config.dtype = dtype
    config._name_or_path = ""
    with torch.device("meta"):
        skeleton: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return skeleton


def _without_ties(model: PreTrainedModel, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One name for each tensor: safetensors refuses two names for the same memory, and loading ties them again."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return {name: tensor.contiguous() for name, tensor in weights.items() if name not in tied}
