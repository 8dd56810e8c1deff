"""Laying the model out over the ranks."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from arrowtune.backends.fsdp.objective import Objective
from arrowtune.backends.fsdp.world import World


def shard(objective: Objective, compute: torch.dtype, world: World, *, recompute: bool) -> None:
    """Shard the parameters of every layer, then the rest, over all ranks. Gradients are summed, not averaged.

    Args:
        objective: Its model is whole, on the CPU, the same on every rank. It becomes the root of the sharded units.
        compute: Of activations and matrix products.
        world: The ranks.
        recompute: Run every layer again in the backward pass instead of keeping its activations.
    """
    model = objective.model
    if recompute:
        _recompute_activations(model)
    nn.Module.to(model, world.device)  # transformers' own `to` is for quantized models
    policy = _precision(model, compute)
    for layer in layers_of(model):
        fully_shard(layer, mesh=world.mesh, mp_policy=policy)
    fully_shard(objective, mesh=world.mesh, mp_policy=policy)
    for module in objective.modules():
        if isinstance(module, FSDPModule):
            # The loss is divided by the weight of the global batch already; what is left to do over ranks is a sum.
            module.set_gradient_divide_factor(1.0)
            # gloo knows plain sums alone.
            module.set_force_sum_reduction_for_comms(True)


def reshard(objective: Objective) -> None:
    """Give back the whole embeddings and head that a forward pass without a backward pass leaves on every rank."""
    if isinstance(objective, FSDPModule):
        objective.reshard()


def _recompute_activations(model: PreTrainedModel) -> None:
    # The name changed within transformers 5; the old one warns.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """The repeated blocks, by the class names that the model declares as not to be split; those inside of another left out."""
    names = set(model._no_split_modules or ())
    found = {name: module for name, module in model.named_modules() if type(module).__name__ in names}
    return [module for name, module in found.items() if not any(name.startswith(f"{other}.") for other in found)]


def _precision(model: PreTrainedModel, compute: torch.dtype) -> MixedPrecisionPolicy:
    if compute == model.dtype == torch.float32:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
