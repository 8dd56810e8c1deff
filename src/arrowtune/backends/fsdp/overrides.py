"""`model.config`: the user's changes to a model's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from arrowtune.errors import ConfigError, Problem

_LAYERS = "num_hidden_layers"
_SEE = "see the model's config.json"


def override(config: PretrainedConfig, changes: Mapping[str, Any]) -> None:
    """Change a configuration; lists with an entry for every layer follow the number of layers.

    Raises:
        ConfigError: A key is unknown, or its value cannot be.
    """
    kind = type(config).__name__
    unknown = [key for key in changes if not hasattr(config, key)]
    if unknown:
        problems = [Problem(f"model.config.{key}", "unknown key") for key in unknown]
        raise ConfigError(f"{kind} has no such setting", problems=problems)
    layers = getattr(config, _LAYERS, None)
    for key, value in changes.items():
        try:
            setattr(config, key, value)
        except Exception as error:  # noqa: BLE001 - each class checks in its own way
            raise _refused(kind, f"model.config.{key}", error) from None
    if _LAYERS in changes and isinstance(layers, int):
        _follow(config, layers, changes)
    try:
        config.validate()
    except Exception as error:  # noqa: BLE001 - as above
        raise _refused(kind, " and ".join(f"model.config.{key}" for key in changes), error) from None


def _follow(config: PretrainedConfig, layers: int, changes: Mapping[str, Any]) -> None:
    """Cut lists with an entry for each of `layers` layers to the new number; continue them with what repeats in them."""
    wanted = changes[_LAYERS]
    for key, value in vars(config).items():
        if isinstance(value, list) and len(value) == layers and layers and key not in changes:
            period = next(n for n in range(1, layers + 1) if value == [value[k % n] for k in range(layers)])
            setattr(config, key, [value[k % period] for k in range(wanted)])


def _refused(kind: str, where: str, error: BaseException) -> ConfigError:
    cause = str(error.__cause__ or error).strip().splitlines()
    return ConfigError(
        f"{kind} refuses {where}: {cause[0] if cause else type(error).__name__}", hint="see the model's config.json"
    )
