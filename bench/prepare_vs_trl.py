"""`arrowtune prepare` beside TRL's preparation: the same rows, the same tokenizer, two processes each.

Ours is timed as a whole command in a fresh process with a cold cache, start-up included: the middle one of several times, since
on a small machine a run of seconds meets disturbances that a run of minutes does not notice. TRL's is timed inside
`SFTTrainer._prepare_dataset`, start-up and loading left out, with assistant-only masks from its own training template.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from real_chats import ROOT, tokenizer_folder, write_chats

RESULTS = ROOT / "bench" / "results"
MAX_LENGTH = 8192


def ours(data: Path, scratch: Path, times: int) -> dict[str, Any]:
    """Prepare with the command line, each time with a new cache."""
    found = []
    for number in range(times):
        (folder := scratch / f"ours-{number}").mkdir()
        found.append(once(data, folder))
        shutil.rmtree(folder)
    middle = sorted(found, key=lambda one: float(one["seconds"]))[times // 2]
    return {**middle, "all_seconds": [one["seconds"] for one in found]}


def once(data: Path, folder: Path) -> dict[str, Any]:
    """Prepare once."""
    run = folder / "run.yaml"
    run.write_text(
        json.dumps(
            {
                "model": {"path": str(tokenizer_folder())},
                "data": {
                    "train": [{"path": str(data), "format": "messages"}],
                    "max_length": MAX_LENGTH,
                    "workers": 2,
                    "cache_dir": str(folder / "cache"),
                },
            }
        )
    )
    command = [sys.executable, "-m", "arrowtune", "prepare", str(run), "--json"]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - started
    store = json.loads(done.stdout)["stores"][0]
    return {"seconds": seconds, "tokens": store["tokens"], "rows": store["rows"], "trained_tokens": store["trained_tokens"]}


def theirs(data: Path, folder: Path) -> dict[str, Any]:
    """Prepare with TRL, as its trainer does."""
    import trl
    from datasets import disable_caching, load_dataset
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    disable_caching()
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder())
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3_training.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    rows = load_dataset("json", data_files=str(data), split="train", cache_dir=str(folder / "datasets"))
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
    )
    took: list[float] = []

    class Timed(SFTTrainer):
        def _prepare_dataset(self, *args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            prepared = super()._prepare_dataset(*args, **kwargs)
            took.append(time.perf_counter() - started)
            return prepared

    settings = SFTConfig(
        output_dir=str(folder / "trl"),
        max_length=MAX_LENGTH,
        assistant_only_loss=True,
        dataset_num_proc=2,
        report_to="none",
        use_cpu=True,
        bf16=False,
    )
    trainer = Timed(model=Qwen3ForCausalLM(config), args=settings, train_dataset=rows, processing_class=tokenizer)
    prepared: Any = trainer.train_dataset
    lengths = [len(ids) for ids in prepared["input_ids"]]
    return {"seconds": took[0], "tokens": sum(lengths), "rows": len(lengths)}


def main() -> None:
    """Measure both and print the ratio."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mb", type=float, default=100, help="size of the rows as JSON lines")
    options.add_argument("--times", type=int, default=5, help="how often ours is run")
    options.add_argument("--only-ours", action="store_true", help="leave TRL out, which takes many minutes")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = folder / "chats.jsonl"
        rows = write_chats(data, int(chosen.mb * 1e6))
        result: dict[str, Any] = {"rows": rows, "bytes": data.stat().st_size, "arrowtune": ours(data, folder, chosen.times)}
        if not chosen.only_ours:
            result["trl"] = theirs(data, folder)
    for side in ("arrowtune", "trl"):
        if side in result:
            result[side]["tokens_per_second"] = result[side]["tokens"] / result[side]["seconds"]
    if "trl" in result:
        result["ratio"] = result["arrowtune"]["tokens_per_second"] / result["trl"]["tokens_per_second"]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "prepare_vs_trl.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
