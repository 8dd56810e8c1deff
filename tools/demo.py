"""`make demo`: the main job on the embedded default, from raw rows to a model that answers, in about a minute on two cores."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from arrowtune import SFTConfig, SFTTrainer, check, prepare
from arrowtune.view.check import check_text
from arrowtune.view.prepared import prepared_text
from arrowtune.view.trained import trained_text

ROOT = Path(__file__).parents[1]
QUESTION = [{"role": "user", "content": "Which day comes after Monday?"}]


def answer(model_folder: Path) -> str:
    """What a model folder answers to the question, with transformers alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_folder)
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder)
    inputs = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    written = model.generate(**inputs, max_new_tokens=24, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(written, skip_special_tokens=True)).strip()


def show(title: str, text: str) -> None:
    """A part of the demo on stdout."""
    print(f"\n{title}\n{'-' * len(title)}\n{text}", flush=True)


def main() -> None:
    """Prepare, plan, train, evaluate, export, ask; exits 1 where an evaluation loss did not halve."""
    os.chdir(ROOT)
    started = time.perf_counter()
    shutil.rmtree("runs/demo", ignore_errors=True)
    config = SFTConfig.load("examples/tiny.yaml", ["name=demo", "data.cache_dir=runs/demo/cache"])
    show("prepare", prepared_text([store.to_json() for store in prepare(config)]))
    show("check", check_text(check(config).to_json()))
    print("\ntrain\n-----", flush=True)
    with SFTTrainer(config) as trainer:
        before = answer(trainer.rank.export("export-before", 0))
        result = trainer.train()
    show("result", trained_text(result))
    assert result.export is not None
    show("before and after", f"{QUESTION[0]['content']}\n  before: {before!r}\n  after:  {answer(result.export)!r}")
    print(f"\ntook {time.perf_counter() - started:.0f} s")
    slow = {name: losses for name, losses in result.evals.items() if losses[-1][1] > losses[0][1] / 2}
    if slow:
        sys.exit(f"the loss did not halve on {', '.join(slow)}")


if __name__ == "__main__":
    main()
