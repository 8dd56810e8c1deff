"""What a run leaves behind: an export that any process loads, a checkpoint that can be measured and exported again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.assets import EXAMPLES, TINY
from support.cli import arrowtune
from support.training import logits_of

RUN = """
name: exported
model: {path: base, init: random}
tokenizer: {chat_template: my.jinja}
data:
  train: [{path: DATA/train/chats.jsonl, name: chats}]
  eval: [{path: DATA/heldout/chats.jsonl, name: held out}]
  max_length: 512
batch: {examples: 16, micro_tokens: 1024}
optimizer: {lr: 3e-3}
train: {steps: 3}
"""

TEMPLATE = "{# mine #}" + (TINY / "chat_template.jinja").read_text()

LOGITS = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
ids = tokenizer("Which day comes after Monday?", return_tensors="pt")["input_ids"]
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
with torch.no_grad():
    logits = model(input_ids=ids).logits.float()
print(json.dumps({"logits": logits.flatten().tolist(), "ids": ids.tolist(), "chat": chat, "dtype": str(model.dtype)}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    (folder / "run.yaml").write_text(RUN.replace("DATA", str(EXAMPLES / "data")))
    shutil.copytree(TINY, folder / "base")
    (folder / "my.jinja").write_text(TEMPLATE)
    done = arrowtune("train", "run.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def exported(run: Path) -> dict[str, Any]:
    return loaded(run / "runs/exported/export")


def loaded(model: Path) -> dict[str, Any]:
    """What a fresh process makes of a model folder."""
    done = subprocess.run([sys.executable, "-c", LOGITS, str(model)], capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_export_has_the_logits_of_the_checkpoint(run: Path, exported: dict[str, Any]) -> None:
    from arrowtune.model import restored_model
    from arrowtune.origin import run_of

    checkpoint = run / "runs/exported/checkpoints/step-00000003"
    with restored_model(run_of(checkpoint), checkpoint) as (backend, _):
        (document,) = exported["ids"]
        logits = logits_of(backend, document).flatten().tolist()
    assert logits == pytest.approx(exported["logits"], abs=1e-5)


def test_B81_the_template_is_the_trained_one_in_both_places(run: Path, exported: dict[str, Any]) -> None:
    export = run / "runs/exported/export"
    assert (export / "chat_template.jinja").read_text() == TEMPLATE
    assert json.loads((export / "tokenizer_config.json").read_text())["chat_template"] == TEMPLATE
    assert exported["chat"].startswith("<|im_start|>user\nhi<|im_end|>")


def test_generation_stops_where_the_model_was_taught_to(run: Path) -> None:
    settings = json.loads((run / "runs/exported/export/generation_config.json").read_text())
    tokens = json.loads((TINY / "tokenizer.json").read_text())["added_tokens"]
    end_of_turn = next(token["id"] for token in tokens if token["content"] == "<|im_end|>")
    stops = settings["eos_token_id"]
    assert end_of_turn in (stops if isinstance(stops, list) else [stops])


def test_eval_measures_what_the_run_measured(run: Path) -> None:
    checkpoint = "runs/exported/checkpoints/step-00000003"
    done = arrowtune("eval", "run.yaml", "--checkpoint", checkpoint, "--json", cwd=run)
    assert done.returncode == 0, done.stderr
    (measured,) = json.loads(done.stdout)["evals"]
    lines = [json.loads(line) for line in (run / "runs/exported/metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["kind"] == "eval"][-1]
    assert (measured["name"], measured["step"]) == ("held out", 3)
    assert measured["loss"] == pytest.approx(told["loss"], rel=1e-6)


def test_B80_export_again_from_elsewhere_in_the_dtype_asked_for(run: Path, exported: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = run / "runs/exported/checkpoints/step-00000003"
    done = arrowtune("export", checkpoint, "half", "--dtype", "bfloat16", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "half"
    half = loaded(tmp_path / "half")
    assert half["dtype"] == "torch.bfloat16"
    assert json.loads((tmp_path / "half/config.json").read_text())["dtype"] == "bfloat16"
    assert half["logits"] == pytest.approx(exported["logits"], abs=0.25)
    sizes = [
        sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        for folder in (tmp_path / "half", run / "runs/exported/export")
    ]
    assert sizes[0] == pytest.approx(sizes[1] / 2, rel=0.01)


def test_an_export_has_the_template_of_the_training_whatever_became_of_its_files(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    resolved = copy / "runs/exported/resolved.json"
    resolved.write_text(resolved.read_text().replace(str(run), str(copy)))
    (copy / "my.jinja").write_text("{{ 'edited' }}")
    settings = json.loads((copy / "base/tokenizer_config.json").read_text())
    (copy / "base/tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "<|endoftext|>"}))
    done = arrowtune("export", copy / "runs/exported/checkpoints/step-00000003", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("chat_template.jinja", "tokenizer_config.json", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (run / "runs/exported/export" / name).read_bytes(), name


@pytest.mark.slow
def test_an_outer_torchrun_is_joined(run: Path) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "arrowtune", "train",
        "run.yaml", "name=joined", "export.at_end=false",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=run, timeout=280)
    assert done.returncode == 0, done.stderr

    def told(name: str) -> list[tuple[str, float]]:
        lines = [json.loads(line) for line in (run / "runs" / name / "metrics.jsonl").read_text().splitlines()]
        return [(line["batch_digest"], pytest.approx(line["loss"], rel=1e-5)) for line in lines if line["kind"] == "train"]

    assert told("joined") == told("exported")
