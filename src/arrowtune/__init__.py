"""arrowtune: supervised fine-tuning of language models, exact from the chat template to the gradient.

The public names load on first use, so that `import arrowtune` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arrowtune.api import check, evaluate, export, prepare, train
    from arrowtune.config import SFTConfig
    from arrowtune.data.store import Store
    from arrowtune.errors import (
        ArrowtuneError,
        BackendError,
        CheckpointError,
        ConfigError,
        DataError,
        ExportError,
    )
    from arrowtune.trainer import SFTTrainer
    from arrowtune.training.callbacks import Callback
    from arrowtune.training.result import TrainResult
    from arrowtune.types import Conversation, EvalStats, Example, Message, StepStats

__version__ = "0.1.0"

_HOME = {
    "ArrowtuneError": "errors",
    "BackendError": "errors",
    "Callback": "training.callbacks",
    "CheckpointError": "errors",
    "ConfigError": "errors",
    "Conversation": "types",
    "DataError": "errors",
    "EvalStats": "types",
    "Example": "types",
    "ExportError": "errors",
    "Message": "types",
    "SFTConfig": "config",
    "SFTTrainer": "trainer",
    "StepStats": "types",
    "Store": "data.store",
    "TrainResult": "training.result",
    "check": "api",
    "evaluate": "api",
    "export": "api",
    "prepare": "api",
    "train": "api",
}

__all__ = [
    "ArrowtuneError",
    "BackendError",
    "Callback",
    "CheckpointError",
    "ConfigError",
    "Conversation",
    "DataError",
    "EvalStats",
    "Example",
    "ExportError",
    "Message",
    "SFTConfig",
    "SFTTrainer",
    "StepStats",
    "Store",
    "TrainResult",
    "check",
    "evaluate",
    "export",
    "prepare",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'arrowtune' has no attribute {name!r}")
    return getattr(import_module(f"arrowtune.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
