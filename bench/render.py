"""One process: conversations to ids and weights, beside rendering the chat template alone.

`template` is the render of every row by the template as transformers compiles it, nothing else done. `marked` is ours,
with the places of the turns noted. `encode` is all of it: render, spans, control text, token ids, loss weights. Seconds are
of processor time, over all threads. Loading and start-up are left out. Renders are the best of the rounds; `encode` is the
first pass over the rows, with an engine that has not seen them, since that is what a `prepare` does.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from arrowtune.data.formats import get_format
from arrowtune.data.render import Renderer, RenderSpec
from arrowtune.data.render.template import ChatTemplate, Shape, shape_message
from arrowtune.data.tokenizer import read_tokenizer
from arrowtune.types import Conversation, Origin
from real_chats import ROOT, chats, tokenizer_folder

RESULTS = ROOT / "bench" / "results"
BATCH = 256


def rows(size: int) -> list[dict[str, Any]]:
    """Real conversations of `size` bytes together."""
    total, found = 0, []
    for row in chats():
        found.append(row)
        total += sum(len(message["content"].encode()) for message in row["messages"])
        if total >= size:
            break
    return found


def best(rounds: int, work: Callable[[], object]) -> float:
    """The seconds of the fastest of several rounds."""
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def measure(name: str, size: int, rounds: int) -> dict[str, Any]:
    """Seconds of processor time for one tokenizer and its template."""
    from transformers.utils.chat_template_utils import _compile_jinja_template as compiled

    files = read_tokenizer(tokenizer_folder(name))
    records = rows(size)
    parse = get_format("messages").parse
    items = [item for k, row in enumerate(records) if isinstance(item := parse(row, Origin("bench", k), {}), Conversation)]
    template = compiled(str(files.chat_template))
    bare: dict[str, Any] = {**files.special_tokens, "tools": None, "documents": None, "add_generation_prompt": False}
    own = ChatTemplate(str(files.chat_template), files.special_tokens, {}, None)
    shaped = [[shape_message(turn, Shape(), {}) for turn in item.messages] for item in items]
    renderer = Renderer(RenderSpec(files, max_length=1 << 20))
    renderer.encode(items[:1])

    started = time.process_time()
    tokens = sum(len(renderer.encode(items[k : k + BATCH]).input_ids) for k in range(0, len(items), BATCH))
    result: dict[str, Any] = {
        "rows": len(items),
        "bytes": sum(len(str(turn.content).encode()) for item in items for turn in item.messages),
        "tokens": tokens,
        "fast_engine": renderer.engine.fast,
        "encode_seconds": time.process_time() - started,
        "template_seconds": best(rounds, lambda: [template.render(messages=row["messages"], **bare) for row in records]),
        "marked_seconds": best(rounds, lambda: [own.render(messages) for messages in shaped]),
    }
    result["ratio"] = result["encode_seconds"] / result["template_seconds"]
    result["tokens_per_second"] = result["tokens"] / result["encode_seconds"]
    return result


def main() -> None:
    """Measure and print JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mb", type=float, default=20, help="size of the conversations")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--tokenizers", nargs="+", default=["qwen3", "llama3_1", "gemma3", "deepseek_v3"])
    chosen = options.parse_args()
    result = {name: measure(name, int(chosen.mb * 1e6), chosen.rounds) for name in chosen.tokenizers}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "render.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
