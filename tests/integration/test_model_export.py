"""What the backend exports loads again as it was: architectures, ranks, dtypes, and the base model's generation settings."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrowtune.errors import ExportError
from support.parity import SHAPE, model_folder
from support.ranks import run_ranks
from support.training import logits_of, opened, train

IDS = [5, 17, 250, 3, 99, 8]

MIXTURES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


def trained_and_exported(model: Path, out: Path, dtype: str = "auto") -> np.ndarray:
    """Train two steps, export; the trained model's logits."""
    backend = opened(model)
    train(backend, 0, 2)
    logits = logits_of(backend, IDS).numpy()
    backend.export(out, dtype)
    backend.close()
    return np.asarray(logits)


def reloaded(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    loaded, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    with torch.no_grad():
        return loaded, loaded(input_ids=torch.tensor([IDS])).logits[0].float().numpy()


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3_text"])
def test_logits_are_those_of_the_trained_model(tmp_path: Path, kind: str) -> None:
    trained = trained_and_exported(model_folder(kind, tmp_path / "base"), tmp_path / "out")
    np.testing.assert_allclose(reloaded(tmp_path / "out")[1], trained, atol=1e-5)


@pytest.mark.parametrize("kind", list(MIXTURES))
def test_experts_are_written_as_the_hub_has_them(tmp_path: Path, kind: str) -> None:
    import torch
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(2)
    config = AutoConfig.for_model(kind, **SHAPE, **MIXTURES[kind])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    trained = trained_and_exported(tmp_path / "base", tmp_path / "out")
    np.testing.assert_allclose(reloaded(tmp_path / "out")[1], trained, atol=1e-5)
    names = [
        sorted(safe_open(tmp_path / folder / "model.safetensors", "np").keys())  # type: ignore[no-untyped-call]
        for folder in ("base", "out")
    ]
    assert names[0] == names[1]


def test_two_ranks_write_one_whole_model(tmp_path: Path) -> None:
    trained = run_ranks(2, trained_and_exported, model_folder("qwen3", tmp_path / "base"), tmp_path / "out")
    np.testing.assert_allclose(reloaded(tmp_path / "out")[1], trained[0], atol=1e-5)


def test_B80_the_dtype_asked_for_is_the_dtype_written(tmp_path: Path) -> None:
    base = model_folder("llama", tmp_path / "base")
    for dtype, bytes_each in (("float32", 4), ("bfloat16", 2), ("float16", 2)):
        trained_and_exported(base, tmp_path / dtype, dtype)
        assert json.loads((tmp_path / dtype / "config.json").read_text())["dtype"] == dtype
        loaded, _ = reloaded(tmp_path / dtype)
        assert str(loaded.dtype) == f"torch.{dtype}"
        size = (tmp_path / dtype / "model.safetensors").stat().st_size
        assert size == pytest.approx(loaded.num_parameters() * bytes_each, rel=0.05)


def test_B80_auto_is_the_dtype_the_model_came_with(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    base = model_folder("llama", tmp_path / "base")
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    trained_and_exported(tmp_path / "half", tmp_path / "out")
    assert str(reloaded(tmp_path / "out")[0].dtype) == "torch.bfloat16"


def test_B82_generation_settings_of_the_base_model_survive_even_invalid_ones(tmp_path: Path) -> None:
    base = model_folder("llama", tmp_path / "base")
    settings = {"do_sample": False, "temperature": 0.9, "eos_token_id": [2, 7], "max_new_tokens": 50}
    (base / "generation_config.json").write_text(json.dumps(settings))
    trained_and_exported(base, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert {key: written[key] for key in ("eos_token_id", "temperature", "max_new_tokens")} == {
        "eos_token_id": [2, 7], "temperature": 0.9, "max_new_tokens": 50,
    }  # fmt: skip


def test_the_configuration_is_the_base_models(tmp_path: Path) -> None:
    base = model_folder("qwen3", tmp_path / "base")
    trained_and_exported(base, tmp_path / "out")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (base, tmp_path / "out"))
    assert after == before


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    backend = opened(model_folder("llama", tmp_path / "base"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(ExportError, match=r"cannot be written: .*File too large") as caught:
            backend.export(tmp_path / "out", "auto")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        backend.close()
    assert "\n" not in caught.value.message
