"""A model that comes as GGUF is trained in full precision and exported as safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arrowtune.backends import open_backend
from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from support.assets import smollm2_folder
from support.training import logits_of


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("auto", 0.0), ("bfloat16", 0.5)])
def test_a_gguf_model_exports_what_transformers_cannot_save(tmp_path: Path, dtype: str, tolerance: float) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = smollm2_folder()
    (gguf,) = folder.glob("*.gguf")
    backend = open_backend(ModelConfig(path=str(folder), gguf_file=gguf.name), StrategyConfig(), OptimizerConfig(), seed=1)
    document = [1, 5, 99, 1000, 2000, 4]
    ids = torch.tensor([document])
    with torch.no_grad():
        trained = logits_of(backend, document)
        backend.export(tmp_path / "export", dtype)
        backend.close()
        config = json.loads((tmp_path / "export" / "config.json").read_text())
        assert "quantization_config" not in config
        assert config["dtype"] == ("float32" if dtype == "auto" else dtype)
        reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype=torch.float32)
        assert float((reloaded(input_ids=ids).logits[0] - trained).abs().max()) <= tolerance
