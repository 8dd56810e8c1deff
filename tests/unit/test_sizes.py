"""Examples longer than the positions of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arrowtune.backends.config import ModelConfig
from arrowtune.backends.sizes import check_length, read_config
from arrowtune.errors import ConfigError


def model(folder: Path, **config: object) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    return ModelConfig(path=str(folder))


def test_a_model_that_computes_positions_is_warned_of(tmp_path: Path) -> None:
    qwen = model(tmp_path, model_type="qwen3", max_position_embeddings=4096)
    assert check_length(read_config(qwen), 4096) == ""
    told = check_length(read_config(qwen), 4097)
    assert "data.max_length is 4097, more than the 4096 positions" in told
    more = qwen.model_copy(update={"config": {"max_position_embeddings": 8192}})
    assert check_length(read_config(more), 4097) == ""


def test_a_model_with_a_table_of_positions_cannot_go_beyond_it(tmp_path: Path) -> None:
    gpt = model(tmp_path, model_type="gpt2", n_positions=1024)
    assert check_length(read_config(gpt), 1024) == ""
    with pytest.raises(ConfigError, match="table of 1024 positions") as raised:
        check_length(read_config(gpt), 2048)
    assert "data.max_length to 1024" in raised.value.hint


def test_a_vision_language_model_has_the_positions_of_its_text(tmp_path: Path) -> None:
    nested = model(tmp_path, model_type="qwen3_vl", text_config={"model_type": "qwen3", "max_position_embeddings": 64})
    assert "the 64 positions" in check_length(read_config(nested), 100)


def test_the_model_of_the_package_and_models_that_are_elsewhere(tmp_path: Path) -> None:
    assert "8192 positions" in check_length(read_config(ModelConfig()), 10_000)
    assert read_config(ModelConfig(path="some/where")) is None
    assert check_length(None, 10**6) == ""


def test_the_tables_of_positions_are_real_ones() -> None:
    """A model of each kind that is at hand has an embedding, or a buffer, of that many rows."""
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, GPTBigCodeConfig, GPTJConfig, GPTNeoConfig, OPTConfig, Qwen3Config

    small = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 8}
    flat = {"vocab_size": 16, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8}
    neo = {**small, "num_layers": 1, "num_heads": 2, "attention_types": [[["global"], 1]]}
    del neo["num_hidden_layers"], neo["num_attention_heads"]
    tabled = [
        GPT2Config(**flat),
        GPTBigCodeConfig(**flat),
        GPTJConfig(**{**flat, "rotary_dim": 4}),
        OPTConfig(**{**small, "ffn_dim": 16, "word_embed_proj_dim": 16}),
        GPTNeoConfig(**neo),
    ]
    computed = [Qwen3Config(**{**small, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 16})]
    for config in [*tabled, *computed]:
        lm = AutoModelForCausalLM.from_config(config).eval()
        ids = torch.zeros((1, 9), dtype=torch.long)
        if config in tabled:
            with pytest.raises((IndexError, RuntimeError)):
                lm(input_ids=ids, position_ids=torch.arange(9)[None])
            with pytest.raises(ConfigError):
                check_length(config.to_dict(), 9)
        else:
            lm(input_ids=ids, position_ids=torch.arange(9)[None])
            assert check_length(config.to_dict(), 9)
