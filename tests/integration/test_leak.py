"""Models that carry a state across documents are found out at the start, and run one document per row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arrowtune import SFTConfig, SFTTrainer
from arrowtune.backends import open_backend
from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from support.assets import EXAMPLES
from support.parity import CONFIGS, model_folder

RECURRENT: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "recurrent_gemma": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "lru_width": 32,
        "attention_window_size": 16, "head_dim": 16, "num_key_value_heads": 1,
    },
}  # fmt: skip


def random_model(kind: str, folder: Path, vocabulary: int = 300) -> Path:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, vocab_size=vocabulary, **RECURRENT[kind])
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def why_not_packed(folder: Path) -> str:
    backend = open_backend(ModelConfig(path=str(folder)), StrategyConfig(), OptimizerConfig(), seed=0)
    backend.close()
    return backend.why_not_packed


@pytest.mark.parametrize("kind", list(RECURRENT))
def test_a_state_that_crosses_documents_is_found(kind: str, tmp_path: Path) -> None:
    assert "see each other" in why_not_packed(random_model(kind, tmp_path))


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_attention_keeps_documents_apart(kind: str, tmp_path: Path) -> None:
    assert why_not_packed(model_folder(kind, tmp_path)) == ""


def test_such_a_run_packs_nothing_and_says_so(tmp_path: Path) -> None:
    model = random_model("mamba", tmp_path / "model", vocabulary=2048)
    run = SFTConfig.parse(
        {
            "output_dir": str(tmp_path / "run"),
            "model": {"path": str(model)},
            "tokenizer": {"path": "tiny"},
            "data": {"train": [str(EXAMPLES / "data/train/tasks.parquet")], "max_length": 64},
            "batch": {"examples": 4},
            "train": {"steps": 1},
            "export": {"at_end": False},
            "track": ["jsonl"],
        }
    )
    with SFTTrainer(run) as trainer:
        assert [len(row) for row in trainer.rank.plan.rows(0)] == [1, 1, 1, 1]
        trainer.train()
    derived = json.loads((tmp_path / "run" / "resolved.json").read_text())["derived"]["batch.packing"]
    assert derived["value"] == "none"
    assert "Mamba" in derived["because"]
