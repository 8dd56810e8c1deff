"""`model.config`: the user's changes to a model's configuration, and the dtype a run computes in."""

from __future__ import annotations

from typing import Any

import pytest

from arrowtune.backends import open_backend
from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.config import SFTConfig
from arrowtune.errors import ConfigError
from arrowtune.resolve import resolve


def opened(model: ModelConfig, **strategy: Any) -> Any:
    return open_backend(model, StrategyConfig(**strategy), OptimizerConfig(), seed=1)


@pytest.mark.parametrize("layers", [2, 6])
def test_lists_with_an_entry_for_every_layer_follow_their_number(layers: int) -> None:
    backend: Any = opened(ModelConfig(config={"num_hidden_layers": layers}))
    try:
        assert len(backend.model.model.layers) == layers
        assert backend.model_config["layer_types"] == ["full_attention"] * layers
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_size": "abc"}, r"refuses model\.config\.hidden_size: .*expected int"),
        ({"layer_types": ["full_attention"]}, r"refuses model\.config\.layer_types: "),
        ({"num_key_value_heads": 0}, "no model can be made"),
        ({"num_attention_heads": 3}, "no model can be made"),
        ({"vocab_size": 100}, "no model can be made"),
        ({"layers": 3}, "no such setting"),
    ],
)
def test_a_change_that_cannot_be_is_one_sentence_that_names_it(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        opened(ModelConfig(config=changes))
    error = raised.value
    assert f"model.config.{next(iter(changes))}" in " ".join([error.message, error.hint, *(item.path for item in error.problems)])


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("asked", ["auto", "float32", "bfloat16"])
def test_what_a_run_computes_in_is_what_it_says(stored: Any, asked: Any) -> None:
    run = resolve(SFTConfig(strategy={"compute_dtype": asked}), devices=1, gpu=False, for_training=False)
    backend: Any = opened(ModelConfig(dtype=stored, config={"num_hidden_layers": 1}), compute_dtype=asked)
    seen: list[str] = []
    try:
        layer = backend.model.model.layers[0].mlp
        layer.register_forward_hook(lambda module, given, made: seen.append(str(made.dtype)))
        import numpy as np

        from arrowtune.types import Batch

        ids = np.arange(6, dtype=np.int64)
        backend.eval_loss([Batch(ids, ids, np.ones(6, np.float32), ids, np.array([0, 6], np.int32))])
        assert {f"torch.{run['strategy.compute_dtype']}"} == set(seen)
        assert {str(parameter.dtype) for parameter in backend.model.parameters()} == {f"torch.{stored}"}
    finally:
        backend.close()
