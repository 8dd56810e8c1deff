"""Long texts in parts have the tokens of the whole."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
import pytest

from arrowtune.data.render import Renderer, RenderSpec
from arrowtune.data.render import cuts as module
from arrowtune.data.render.cuts import head, stretches
from arrowtune.data.render.engine import Engine
from arrowtune.types import Completion, Conversation, Document, Item, Message, Origin
from support.render import tokenizer

CHATS = (
    "Größe zählt, says 'Ünïcode' — and I'll have 3.14159  of it.\n\n\tdef f(x):  return {'a': [x, 1]}  # ok \r\n"
    "日本語のテキスト e\u0301 👩‍👩‍👧‍👦 plain words follow each other here, as they do. <|im_end|> or <|endoftext|> too \n"
)
ControlPolicy = Literal["text", "allow"]
NAMES = ("qwen3", "llama3_1", "gemma3", "deepseek_v3")


@pytest.fixture(autouse=True)
def _short_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG", 1000)
    monkeypatch.setattr(module, "_BACK", 400)


@cache
def opened(name: str) -> Engine:
    return Engine(tokenizer(name))


def qwen3() -> Engine:
    return opened("qwen3")


@pytest.fixture(params=NAMES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return opened(request.param)


def test_stretches_have_the_tokens_of_the_whole(engine: Engine) -> None:
    text = CHATS * 40
    parts = list(stretches(text, engine))
    assert "".join(parts) == text
    assert np.array_equal(engine.encode(parts).ids, engine.encode([text]).ids)
    cut = len(parts) > 5
    assert cut == (engine._files.alphabet == "bytes")
    if cut:
        assert max(map(len, parts)) <= 1000


@pytest.mark.parametrize(
    "text", ["aGVsbG8gd29ybGQh+/" * 300, "木は高い。林、森。" * 600, "x\n" * 3000, "I've 1a2b3 don't.\t" * 400]
)
def test_texts_without_spaces_are_cut_too(engine: Engine, text: str) -> None:
    parts = list(stretches(text, engine))
    assert "".join(parts) == text
    assert np.array_equal(engine.encode(parts).ids, engine.encode([text]).ids)
    assert (len(parts) > 3) == (engine._files.alphabet == "bytes")


@pytest.mark.parametrize("text", ["a" * 5000, " " * 5000, "日本" * 3000, "\n" * 3000, "1 2 " * 2000], ids=repr)
def test_a_text_without_certain_places_stays_whole(engine: Engine, text: str) -> None:
    assert list(stretches(text, engine)) == [text]


@pytest.mark.parametrize("limit", [10, 300, 2000])
@pytest.mark.parametrize("control", ["text", "allow"])
@pytest.mark.parametrize("answer_first", [True, False])
def test_a_row_far_too_long_gives_what_the_whole_gives(
    limit: int, control: ControlPolicy, answer_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [("user", CHATS * 3), ("assistant", CHATS * 2), ("user", "And?"), ("assistant", CHATS * 60)]
    turns = turns[2:] if answer_first else turns
    items: list[Item] = [
        Conversation(tuple(Message(*turn) for turn in turns), Origin("x", 0)),
        Completion(CHATS, CHATS * 50, Origin("x", 1)),
        Completion(CHATS * 50, CHATS, Origin("x", 2)),
    ]
    spec = RenderSpec(tokenizer("qwen3"), max_length=limit, control_tokens_in_content=control)
    found = Renderer(spec, qwen3()).encode(items)
    monkeypatch.setattr(module, "LONG", 1 << 40)
    whole = Renderer(spec, qwen3()).encode(items)
    assert np.array_equal(found.input_ids, whole.input_ids)
    assert np.array_equal(found.loss_weights, whole.loss_weights)
    assert found.skips == whole.skips
    assert {**found.counts, "straddling": 0, "reference_engine": 0} == {**whole.counts, "straddling": 0, "reference_engine": 0}


@pytest.mark.parametrize("control", ["text", "allow"])
def test_a_long_document_loses_no_token(control: ControlPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RenderSpec(tokenizer("qwen3"), max_length=100, control_tokens_in_content=control)
    items: list[Item] = [Document(CHATS * 30, Origin("x", 0))]
    found = Renderer(spec, qwen3()).encode(items)
    monkeypatch.setattr(module, "LONG", 1 << 40)
    whole = Renderer(spec, qwen3()).encode(items)
    assert np.array_equal(found.input_ids, whole.input_ids)
    assert np.array_equal(found.offsets, whole.offsets)


def test_a_head_has_more_tokens_than_are_wanted(engine: Engine) -> None:
    spec = RenderSpec(tokenizer("qwen3"), max_length=50)
    text = CHATS * 40
    begin = head(text, engine, spec)
    assert text.startswith(begin)
    if len(begin) < len(text):
        ids = engine.encode([begin]).ids
        assert len(ids) > 50
        assert np.array_equal(ids[:50], engine.encode([text]).ids[:50])
