"""What models do between their last hidden state and the loss, so that it can be done in chunks: a table, by architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from arrowtune.backends.fsdp.linear_loss import Logits

_PLAIN = (
    "arcee",
    "ernie4_5",
    "exaone4",
    "gemma",
    "glm",
    "glm4",
    "gpt_neox",
    "gpt_oss",
    "helium",
    "llama",
    "mistral",
    "mixtral",
    "olmo",
    "olmo2",
    "olmo3",
    "phi",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
)


def _plain(config: Any) -> Logits:
    return Logits()


def _capped(config: Any) -> Logits:
    return Logits(cap=config.final_logit_softcapping)


_LOGITS: dict[str, Callable[[Any], Logits]] = {
    **dict.fromkeys(_PLAIN, _plain),
    "gemma2": _capped,
    "gemma3_text": _capped,
    "cohere": lambda config: Logits(scale=config.logit_scale),
    "cohere2": lambda config: Logits(scale=config.logit_scale),
    "granite": lambda config: Logits(scale=1.0 / config.logits_scaling),
    "granitemoe": lambda config: Logits(scale=1.0 / config.logits_scaling),
}


def logits_of(model: PreTrainedModel) -> Logits | None:
    """How a model makes logits from the products of its output layer; None where that is not known."""
    known = _LOGITS.get(model.config.model_type)
    # Whatever stands in the place of a plain layer (an adapter, a quantized one) has to be called, not read.
    if known is None or type(head_of(model)) is not nn.Linear or model.base_model is model:
        return None
    return known(model.config)


def head_of(model: PreTrainedModel) -> Any:
    """The output layer."""
    return model.get_output_embeddings()


def hidden_states(model: PreTrainedModel, **inputs: Any) -> torch.Tensor:
    """[positions, width], what the output layer of a packed row is given."""
    hidden: torch.Tensor = model.base_model(**inputs).last_hidden_state[0]
    return hidden
