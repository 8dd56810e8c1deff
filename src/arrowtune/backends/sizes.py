"""How many positions and tokens a model has, from its configuration alone."""

from __future__ import annotations

import importlib.resources
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arrowtune.backends.config import ModelConfig
from arrowtune.errors import ConfigError

_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")

_TABLED = frozenset(
    {"biogpt", "codegen", "ctrl", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "imagegpt", "openai-gpt", "opt", "trocr", "xglm"}
)
"""Kinds of models that look positions up in a table, which ends. Others compute them."""


def read_config(model: ModelConfig) -> Mapping[str, Any] | None:
    """The model's `config.json` with the run's changes, where it is at hand; fetches nothing, imports no library of models."""
    folder = str(importlib.resources.files("arrowtune") / "assets" / "tiny") if model.path == "tiny" else model.path
    path = Path(os.path.expanduser(folder)) / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return {**found, **model.config} if isinstance(found, dict) else None


def vocabulary_of(config: Mapping[str, Any] | None) -> int:
    """Rows of the model's embedding; 0 where that is not known."""
    size = _text_part(config).get("vocab_size")
    return size if isinstance(size, int) else 0


def _text_part(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    found = (config or {}).get("text_config") or config or {}
    return found if isinstance(found, Mapping) else {}


def check_length(config: Mapping[str, Any] | None, longest: int) -> str:
    """Whether examples of `longest` tokens are longer than the model has positions for.

    Args:
        config: The model's configuration; None where it is not known.
        longest: `data.max_length`.

    Returns:
        A warning, or "".

    Raises:
        ConfigError: They are, and the model cannot compute the others.
    """
    text = _text_part(config)
    count = next((text[name] for name in _NAMES if isinstance(text.get(name), int)), None)
    if count is None or longest <= count:
        return ""
    if text.get("model_type") in _TABLED:
        raise ConfigError(
            f"data.max_length is {longest}, but the model has a table of {count} positions",
            hint=f"set data.max_length to {count} or less",
        )
    return (
        f"data.max_length is {longest}, more than the {count} positions that the model was made for: "
        f"they are trained as they are; set data.max_length={count}, or scale the positions with model.config, unless you mean it"
    )
