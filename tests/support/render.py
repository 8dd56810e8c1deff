"""What tests of formats and rendering share: renderers by tokenizer, small conversations, real ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from arrowtune.data.formats import get_format
from arrowtune.data.render import Encoded, Renderer, RenderSpec
from arrowtune.data.render.engine import Engine
from arrowtune.data.tokenizer import TokenizerFiles, read_tokenizer
from arrowtune.types import Completion, Conversation, Message, Origin, Skip
from support.assets import sharegpt_file, tokenizer_folder

ORIGIN = Origin("rows.jsonl", 6, 7)
NAMES = ("qwen3", "llama3_1", "gemma3", "deepseek_v3")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@lru_cache(maxsize=8)
def tokenizer(name: str) -> TokenizerFiles:
    return read_tokenizer(tokenizer_folder(name))


@lru_cache(maxsize=8)
def engine(name: str) -> Engine:
    return Engine(tokenizer(name), fast=False)


@lru_cache(maxsize=16)
def renderer(name: str, fast: bool | None = None) -> Renderer:
    return Renderer(RenderSpec(tokenizer(name), max_length=1 << 20, fast=fast))


def with_template(template: str, name: str = "qwen3", **options: Any) -> Renderer:
    """A renderer of another template, with the reference engine: it loads faster."""
    options = {"max_length": 1 << 20, **options}
    return Renderer(RenderSpec(replace(tokenizer(name), chat_template=template), **options), engine(name))


def chat(*turns: str | Message, **options: Any) -> Conversation:
    """`chat("s:Brief.", "u:Hi", "a:Yo")`; messages go as they are."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    messages = [turn if isinstance(turn, Message) else Message(roles[turn[0]], turn[2:]) for turn in turns]
    return Conversation(tuple(messages), options.pop("origin", ORIGIN), **options)


def encode(renderer: Renderer, *items: Conversation | Completion) -> Encoded:
    encoded = renderer.encode(items)
    assert len(encoded.input_ids) == len(encoded.loss_weights) == encoded.offsets[-1]
    assert not encoded.loss_weights[encoded.offsets[:-1]].any()
    return encoded


def trained_runs(renderer: Renderer, encoded: Encoded, example: int = 0) -> list[str]:
    """The texts of the runs of trained tokens."""
    return [renderer.engine.decode(ids) for trained, ids in _runs(encoded, example) if trained]


def context_text(renderer: Renderer, encoded: Encoded, example: int = 0) -> str:
    return "".join(renderer.engine.decode(ids) for trained, ids in _runs(encoded, example) if not trained)


def _runs(encoded: Encoded, example: int) -> Iterator[tuple[bool, list[int]]]:
    part = slice(encoded.offsets[example], encoded.offsets[example + 1])
    pairs = zip(encoded.input_ids[part].tolist(), (encoded.loss_weights[part] > 0).tolist(), strict=True)
    for trained, group in itertools.groupby(pairs, key=lambda pair: pair[1]):
        yield trained, [token for token, _ in group]


def trained(renderer: Renderer, item: Conversation | Completion) -> list[str]:
    encoded = encode(renderer, item)
    assert not encoded.skips, encoded.skips
    return trained_runs(renderer, encoded)


def skip(renderer: Renderer, item: Conversation | Completion) -> Skip:
    encoded = encode(renderer, item)
    assert len(encoded.kept) == 0
    assert len(encoded.skips) == 1
    return encoded.skips[0]


def ids_of(encoded: Encoded, example: int = 0) -> list[int]:
    return np.asarray(encoded.input_ids[encoded.offsets[example] : encoded.offsets[example + 1]]).tolist()


def real_chats(count: int) -> list[Conversation]:
    """The first real conversations that have something to train."""
    form = get_format("sharegpt")
    rows = itertools.count()
    parsed = (form.parse(record, Origin("sharegpt", next(rows)), {}) for record in _records(sharegpt_file()))
    return list(itertools.islice((item for item in parsed if isinstance(item, Conversation)), count))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8") as file:
        text, at = file.read(1 << 24), 1
        while True:
            while text[at] in " \r\n\t,[":
                at += 1
            if len(text) - at < 1 << 22:
                text, at = text[at:] + file.read(1 << 24), 0
            record, at = decoder.raw_decode(text, at)
            yield record
