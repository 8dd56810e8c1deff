"""What no `prepare` of these rows on this machine can go below, beside what ours takes and what a twentieth of TRL's time is.

Whoever prepares rows starts Python, loads a token engine, renders each row with the chat template, and encodes it. The least
processor time of each is measured alone, in the fastest form at hand: the template as transformers compiles it or as we do,
the fast engine, all rows at once. Two processes get more done than one by a factor that is measured too (two threads of one
core give less than two). The bound is the sum over that factor; reading, spans, masks and writing are left out of it. Run
after `prepare_vs_trl.py`, whose result is read.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from arrowtune.data.fast import load_fast
from arrowtune.data.render.template import ChatTemplate, Shape, shape_message
from arrowtune.data.tokenizer import read_tokenizer
from arrowtune.types import Message
from real_chats import ROOT, tokenizer_folder
from render import rows

RESULTS = ROOT / "bench" / "results"
SAMPLE = 8_000_000


def spent(work: Callable[[], object]) -> float:
    """Seconds of processor time, the least of three tries."""
    found = []
    for _ in range(3):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return min(found)


def _burn(seconds: float) -> int:
    """How much plain Python gets done in so many seconds."""
    done, stop = 0, time.perf_counter() + seconds
    while time.perf_counter() < stop:
        done += sum(len(str(k)) for k in range(1000)) > 0
    return done


def speedup() -> float:
    """How much more two processes get done than one."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(_burn, [0.2, 0.2])
        alone = pool.apply(_burn, (2.0,))
        return float(sum(pool.map(_burn, [2.0, 2.0], chunksize=1)) / alone)


def main() -> None:
    """Measure and print JSON."""
    from transformers.utils.chat_template_utils import _compile_jinja_template as compiled

    argparse.ArgumentParser(description=__doc__).parse_args()
    vs_trl = json.loads((RESULTS / "prepare_vs_trl.json").read_text())
    files = read_tokenizer(tokenizer_folder())
    records = rows(SAMPLE)
    scale = vs_trl["bytes"] / sum(len(json.dumps(record, ensure_ascii=False).encode()) for record in records)
    bare: dict[str, Any] = {**files.special_tokens, "tools": None, "documents": None, "add_generation_prompt": False}
    theirs, own = compiled(str(files.chat_template)), ChatTemplate(str(files.chat_template), files.special_tokens, {}, None)
    shaped = [[shape_message(Message(m["role"], m["content"]), Shape(), {}) for m in record["messages"]] for record in records]
    started = time.process_time()
    engine = load_fast(str(files.json_path))
    load = time.process_time() - started
    texts = [own.render(messages).text for messages in shaped]
    started = time.process_time()
    engine.encode_batch_flat(texts, add_special_tokens=False)
    encode = (time.process_time() - started) * scale
    by_transformers = spent(lambda: [theirs.render(messages=record["messages"], **bare) for record in records]) * scale
    by_us = spent(lambda: [own.render(messages) for messages in shaped]) * scale
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "arrowtune", "--help"], capture_output=True, check=True)
    python = time.perf_counter() - started
    factor = speedup()
    bound = (python + load + min(by_transformers, by_us) + encode) / factor
    result = {
        "start_seconds": python,
        "load_seconds": load,
        "render_seconds": {"transformers": by_transformers, "arrowtune": by_us},
        "encode_seconds": encode,
        "two_processes_get_done": factor,
        "bound_seconds": bound,
        "bound_seconds_rendered_by_transformers": (python + load + by_transformers + encode) / factor,
        "arrowtune_seconds": vs_trl["arrowtune"]["seconds"],
        "a_twentieth_of_trl_seconds": vs_trl["trl"]["seconds"] / 20,
        "highest_ratio_possible": vs_trl["trl"]["seconds"] / bound,
    }
    (RESULTS / "prepare_bound.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
