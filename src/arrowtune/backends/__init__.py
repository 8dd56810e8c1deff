"""The backends: a model, its optimizer, and the devices they live on."""

from __future__ import annotations

import os
from importlib import import_module

from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.protocols import Backend

BACKENDS = {
    "fsdp": "arrowtune.backends.fsdp.backend:FSDPBackend",
    "reference": "arrowtune.backends.reference.backend:ReferenceBackend",
}
"""Strategy name -> `module:class`, imported when it is asked for. Adding a backend is a folder and a line here."""


def open_backend(model: ModelConfig, strategy: StrategyConfig, optimizer: OptimizerConfig, *, seed: int) -> Backend:
    """Load the model onto this rank's device. Every rank of a run calls this with the same arguments.

    Args:
        model: What to load.
        strategy: How to lay it out; its name chooses the backend.
        optimizer: How to update it.
        seed: Of random weights and dropout.

    Raises:
        ConfigError: The model cannot be found, or its settings contradict each other.
        BackendError: The model cannot be loaded or laid out.
    """
    # OpenMP's threads spin while they wait: beside any other busy process a step takes up to 50 times as long.
    # It is read when torch is loaded, which happens in the next line.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    module, _, name = BACKENDS[strategy.name].partition(":")
    backend: Backend = getattr(import_module(module), name).open(model, strategy, optimizer, seed=seed)
    return backend
