"""Loading a `transformers` model: pretrained, random, from GGUF, or the one that ships with the package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from arrowtune.backends.config import ModelConfig
from arrowtune.backends.fsdp.overrides import override
from arrowtune.backends.fsdp.quiet import without_gguf_bar
from arrowtune.errors import BackendError, ConfigError, MissingExtra

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model on the CPU, whole, and the dtype its weights were stored in."""

    model: PreTrainedModel
    stored_dtype: torch.dtype


def load_model(model: ModelConfig, *, seed: int) -> Loaded:
    """Load the model that the run file names.

    Raises:
        ConfigError: `model.path` cannot be found or is not a causal language model; an override is unknown.
        BackendError: The weights cannot be read.
    """
    disable_progress_bar()  # Loading takes moments, and the bars of all ranks would write over each other.
    tiny = model.path == "tiny"
    path = str(files("arrowtune") / "assets" / "tiny") if tiny else model.path
    random = tiny or model.init == "random"
    config = _config(model, path)
    stored = _stored_dtype(config)
    dtype = DTYPES["float32" if model.dtype == "auto" else model.dtype]
    loaded = _draw(config, dtype, model, seed) if random else _read(config, dtype, model, path)
    return Loaded(loaded, stored)


def _config(model: ModelConfig, path: str) -> PretrainedConfig:
    options: dict[str, Any] = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    if model.gguf_file:
        _need_gguf()
        options["gguf_file"] = model.gguf_file
    try:
        given = {key: value for key, value in options.items() if value is not None}
        config: PretrainedConfig = AutoConfig.from_pretrained(path, **given)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"the model {model.path!r} cannot be loaded: {_first_line(error)}", hint=_path_hint(model)) from None
    override(config, model.config)
    return config


def _stored_dtype(config: PretrainedConfig) -> torch.dtype:
    stored = getattr(config, "dtype", None)
    if isinstance(stored, str):
        stored = DTYPES.get(stored)
    return stored if isinstance(stored, torch.dtype) else torch.float32


def _draw(config: PretrainedConfig, dtype: torch.dtype, model: ModelConfig, seed: int) -> PreTrainedModel:
    """Random weights, the same on every rank and for every number of ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            drawn: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=dtype, trust_remote_code=model.trust_remote_code
            )
        except Exception as error:  # noqa: BLE001 - models check their configuration by using it
            raise _unusable(model, error) from None
    return drawn


def _read(config: PretrainedConfig, dtype: torch.dtype, model: ModelConfig, path: str) -> PreTrainedModel:
    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": model.trust_remote_code}
    if model.revision:
        options["revision"] = model.revision
    if model.gguf_file:
        from transformers import GgufConfig

        options |= {"gguf_file": model.gguf_file, "quantization_config": GgufConfig(dequantize=True)}
    try:
        with without_gguf_bar():
            loading: Any = AutoModelForCausalLM.from_pretrained(path, config=config, output_loading_info=True, **options)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise BackendError(
            f"the weights of {model.path!r} cannot be loaded: {_first_line(error)}", hint=_path_hint(model)
        ) from None
    read: PreTrainedModel = loading[0]
    _check_read(model, read, loading[1])
    return read


def _check_read(model: ModelConfig, read: PreTrainedModel, told: Mapping[str, Any]) -> None:
    """What is missing transformers fills in with random numbers, and warns."""
    if missing := sorted(told["missing_keys"]):
        raise BackendError(
            f"the weights of {model.path!r} lack {missing[0]} and {len(missing) - 1} more of {type(read).__name__}",
            hint="train from random weights with model.init: random, or use the whole model",
        )
    if read.config.to_dict().get("quantization_config") and not model.gguf_file:
        raise BackendError(
            f"the weights of {model.path!r} are quantized, and quantized weights cannot be trained",
            hint="use the model in bfloat16 or float32",
        )


@contextmanager
def first_run(model: ModelConfig) -> Iterator[None]:
    """Where a model runs for the first time: what is wrong with its configuration shows here at the latest.

    Raises:
        ConfigError: It cannot run.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise _unusable(model, error) from error


def _unusable(model: ModelConfig, error: BaseException) -> ConfigError:
    changed = ", ".join(f"model.config.{key}" for key in model.config)
    hint = f"{changed} changed it; see the model's config.json" if changed else "see the model's config.json"
    return ConfigError(f"no model can be made from the configuration of {model.path!r}: {_first_line(error)}", hint=hint)


def _need_gguf() -> None:
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise MissingExtra("model.gguf_file needs the package gguf", hint="pip install 'arrowtune[gguf]'") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _path_hint(model: ModelConfig) -> str:
    return "model.path is a local folder with config.json and safetensors, a hub id, or tiny"
