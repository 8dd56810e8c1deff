"""Low-rank adapters by `peft`: adding them to a model, and writing them alone or merged into its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from arrowtune.backends.config import LoraConfig
from arrowtune.errors import ConfigError, MissingExtra

_NAME = "default"


def add_adapters(model: PreTrainedModel, lora: LoraConfig, *, seed: int) -> None:
    """Freeze the weights of a model and add adapters that change nothing yet. They are float32 whatever the weights are.

    Args:
        model: Whole, the same on every rank.
        lora: What to add.
        seed: Of the first matrices; the second ones are zero.

    Raises:
        MissingExtra: peft is not installed.
        ConfigError: No layer has a name that is asked for, or one of them is not linear.
    """
    try:
        from peft import LoraConfig as PeftConfig
        from peft import inject_adapter_in_model
    except ImportError:
        raise MissingExtra("model.lora needs the package peft", hint="pip install 'arrowtune[lora]'") from None
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    if isinstance(targets, list):
        _check_targets(model, targets)
    alpha: Any = lora.alpha  # peft says int, and takes any number
    config = PeftConfig(r=lora.rank, lora_alpha=alpha, lora_dropout=lora.dropout, target_modules=targets, task_type="CAUSAL_LM")
    config.base_model_name_or_path = model.config._name_or_path
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, _NAME)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def _check_targets(model: PreTrainedModel, targets: list[str]) -> None:
    named = dict(model.named_modules())
    linear = {name.rsplit(".", 1)[-1] for name, module in named.items() if type(module).__name__ in ("Linear", "Conv1D")}
    for target in targets:
        found = [module for name, module in named.items() if name == target or name.endswith(f".{target}")]
        if not found or any(type(module).__name__ not in ("Linear", "Conv1D") for module in found):
            what = "is no linear layer" if found else "is not there"
            raise ConfigError(f"model.lora.targets: {target!r} {what}", hint=f"the model has {', '.join(sorted(linear))}")


def has_adapters(model: PreTrainedModel) -> bool:
    """Whether `add_adapters` was called."""
    return hasattr(model, "peft_config")


def merged(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights that the model without adapters would need to compute the same.

    Args:
        model: Has adapters; its own tensors may be sharded and are not looked at.
        weights: All of its tensors, whole, by name.
    """
    layers = dict(_layers(model))
    found: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if ".lora_" in name:
            continue
        owner, _, kind = name.rpartition(".base_layer.")
        if not owner:
            found[name] = tensor
            continue
        whole = tensor
        if kind == "weight":
            layer = layers[owner]
            down, up = (weights[f"{owner}.lora_{part}.{_NAME}.weight"].float() for part in "AB")
            change = up @ down * layer.scaling[_NAME]
            # GPT-2's layers hold their matrices the other way round.
            whole = (tensor.float() + (change.T if layer.fan_in_fan_out else change)).to(tensor.dtype)
        found[f"{owner}.{kind}"] = whole
    return found


def _layers(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


def write_adapters(folder: Path, model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Write adapters alone, as peft and transformers load them.

    Args:
        folder: Exists or is made.
        model: Has adapters.
        weights: At least the adapters' tensors, whole, by name.

    Raises:
        OSError: A file cannot be written.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    own: nn.Module = model
    tensors = get_peft_model_state_dict(own, state_dict=dict(weights), adapter_name=_NAME)
    prefixed = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    config: Any = model.peft_config[_NAME]
    config.inference_mode = True
    config.save_pretrained(str(folder))
    config.inference_mode = False
    save_file(prefixed, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
