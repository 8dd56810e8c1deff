"""A model that brings its own code is exported with it: the folder loads by itself, once the code is trusted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.assets import EXAMPLES, TINY

CONFIGURATION = """
from transformers import LlamaConfig

class MineConfig(LlamaConfig):
    model_type = "mine"

    def __init__(self, loudness=3.0, **settings):
        self.loudness = loudness
        super().__init__(**settings)
"""

PARTS = """
def louder(logits, by):
    return logits * by
"""

MODEL = """
from transformers import LlamaForCausalLM
from .configuration_mine import MineConfig
from .parts_of_mine import louder

class MineForCausalLM(LlamaForCausalLM):
    config_class = MineConfig

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = louder(output.logits, self.config.loudness)
        return output
"""

TRAIN = """
import json, sys, torch
from arrowtune import SFTConfig, SFTTrainer
with SFTTrainer(SFTConfig.load("run.yaml")) as trainer:
    result = trainer.train()
    model = trainer.rank.backend.model.eval()
    with torch.no_grad():
        print(json.dumps(model(input_ids=torch.tensor([[5, 17, 250, 3]]), use_cache=False).logits.flatten().tolist()))
"""

LOAD = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
assert type(model).__name__ == "MineForCausalLM"
with torch.no_grad():
    print(json.dumps(model(input_ids=torch.tensor([[5, 17, 250, 3]])).logits.flatten().tolist()))
"""


def model_folder(folder: Path) -> None:
    """Random weights are drawn, so the folder holds code, configuration and tokenizer."""
    folder.mkdir()
    for name, text in (("configuration_mine", CONFIGURATION), ("parts_of_mine", PARTS), ("modeling_mine", MODEL)):
        (folder / f"{name}.py").write_text(text)
    for file in TINY.glob("*oken*"):
        shutil.copyfile(file, folder / file.name)
    shutil.copyfile(TINY / "chat_template.jinja", folder / "chat_template.jinja")
    settings = json.loads((TINY / "config.json").read_text())
    shape = {key: settings[key] for key in ("vocab_size", "eos_token_id", "bos_token_id", "pad_token_id") if key in settings}
    shape |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "dtype": "float32"}
    auto_map = {"AutoConfig": "configuration_mine.MineConfig", "AutoModelForCausalLM": "modeling_mine.MineForCausalLM"}
    config = {"model_type": "mine", "architectures": ["MineForCausalLM"], "auto_map": auto_map, **shape}
    (folder / "config.json").write_text(json.dumps(config))


def python(code: str, *arguments: str | Path, cwd: Path, modules: str) -> list[float]:
    environment = {**os.environ, "HF_MODULES_CACHE": str(cwd / modules)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: list[float] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.slow
def test_an_export_brings_the_code_of_its_model(tmp_path: Path) -> None:
    model_folder(tmp_path / "mine")
    (tmp_path / "run.yaml").write_text(
        "name: mine\nmodel: {path: mine, init: random, trust_remote_code: true}\n"
        f"data: {{train: [{EXAMPLES / 'data/train/tasks.parquet'}], max_length: 128, workers: 1}}\n"
        "batch: {examples: 4}\ntrain: {steps: 2}\ntrack: [jsonl]\n"
    )
    trained = python(TRAIN, cwd=tmp_path, modules="one")
    shutil.rmtree(tmp_path / "mine")
    (tmp_path / "runs/mine/export").rename(tmp_path / "elsewhere")
    assert sorted(path.name for path in (tmp_path / "elsewhere").glob("*.py")) == [
        "configuration_mine.py", "modeling_mine.py", "parts_of_mine.py",
    ]  # fmt: skip
    loaded = python(LOAD, "elsewhere", cwd=tmp_path, modules="two")
    assert max(abs(a - b) for a, b in zip(trained, loaded, strict=True)) < 1e-5
