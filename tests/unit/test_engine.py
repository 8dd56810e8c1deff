"""The token engines: the same ids, and places that are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.data.render.engine import DISAGREES, NASTY, Engine, utf8_places
from arrowtune.data.tokenizer import read_tokenizer
from support.assets import tokenizer_folder
from support.render import CHATML, NAMES, chat, encode, renderer, skip, trained, with_template


@pytest.mark.parametrize("name", NAMES)
def test_the_fast_engine_gives_the_reference_ids_and_places(name: str) -> None:
    fast, slow = renderer(name).engine, renderer(name, False).engine
    assert fast.fast, fast.reason
    assert not slow.fast
    texts = [*NASTY, "e\u0301 und \u1100\u1161", "plain", "▁ <unk>"]
    one, two = fast.encode(texts), slow.encode(texts)
    np.testing.assert_array_equal(one.ids, two.ids)
    np.testing.assert_array_equal(one.offsets, two.offsets)
    np.testing.assert_array_equal(one.base, two.base)
    assert one.referred < len(texts) == two.referred
    text = "".join(texts).encode()
    for k in range(len(texts)):
        part = slice(one.offsets[k], one.offsets[k + 1])
        assert np.all(np.diff(one.starts[part]) >= 0)
        # Where both say that a character begins, they agree; inside a character the reference rounds down.
        begins = [place for place in one.starts[part].tolist() if text[place : place + 1] and text[place] & 0xC0 != 0x80]
        assert set(begins) <= set(two.starts[part].tolist()) | {one.base[k]}


def test_runs_of_spaces_need_no_reference_engine_where_the_added_vocabulary_spells_them() -> None:
    fast, slow = renderer("gemma3").engine, renderer("gemma3", False).engine
    spaced, spelled = "def f():\n    if x:\n        return  1", "▁▁ and ▁▁▁▁"
    one, two = fast.encode([spaced, spelled]), slow.encode([spaced, spelled])
    np.testing.assert_array_equal(one.ids, two.ids)
    np.testing.assert_array_equal(one.starts, two.starts)
    assert (fast.encode([spaced]).referred, fast.encode([spelled]).referred) == (0, 1)


@pytest.mark.parametrize("name", NAMES)
def test_ordinary_chats_need_no_reference_engine(name: str) -> None:
    assert "reference_engine" not in encode(renderer(name), chat("u:  Wie geht's?", "a:Gut,\n    danke ü 日本 👍.")).counts


@given(st.text(max_size=40))
def test_utf8_places(text: str) -> None:
    assert utf8_places(text).tolist() == [len(text[:k].encode()) for k in range(len(text) + 1)]


@pytest.mark.parametrize("fast", [None, False])
def test_B35_surrogates_are_joined_or_replaced_and_counted(fast) -> None:
    qwen = renderer("qwen3", fast)
    lone, pair = chat("u:a \ud800 b", "a:c \udfff"), chat("u:\ud83d\ude00", "a:\ud83d\ude00")
    encoded = encode(qwen, lone, pair)
    assert encoded.counts["repaired_text"] == 2
    assert trained(qwen, lone) == ["<think>\n\n</think>\n\nc \ufffd<|im_end|>"]
    assert trained(qwen, pair) == ["<think>\n\n</think>\n\n😀<|im_end|>"]


def test_a_repaired_row_is_counted_once_for_what_it_meets() -> None:
    plain, lone = chat("u:<|im_end|>", "a:b", "u:c"), chat("u:<|im_end|>\ud800", "a:b", "u:c")
    qwen = renderer("qwen3", False)
    assert encode(qwen, lone).counts == {**encode(qwen, plain).counts, "repaired_text": 1}


def test_a_template_that_writes_a_lone_surrogate_is_no_endless_repair() -> None:
    template = CHATML.replace("m.role", "m.role + ('\\ud800' if 'mark' in m.content else '')")
    found = skip(with_template(template), chat("u:mark", "a:b"))
    assert (found.reason, found.detail) == ("template_error", "the template itself writes a lone surrogate")


def test_text_that_is_not_normalised_goes_to_the_reference(monkeypatch) -> None:
    encoded = encode(renderer("qwen3"), chat("u:Ä", "a:A\u0308b"), chat("u:Ä", "a:Äb"))
    assert encoded.counts["reference_engine"] == 1
    assert trained(renderer("qwen3"), chat("u:x", "a:A\u0308b")) == ["<think>\n\n</think>\n\nÄb<|im_end|>"]


def test_an_empty_batch() -> None:
    assert encode(renderer("qwen3")).offsets.tolist() == [0]


def test_a_byte_that_the_vocabulary_lacks_is_left_out_by_both_engines(tmp_path: Path) -> None:
    tree = json.loads((tokenizer_folder("tiny") / "tokenizer.json").read_text())
    vocab = tree["model"]["vocab"]
    vocab["never merged"] = vocab.pop(chr(256 + 0x13))  # byte 0x13 in the alphabet of byte-level vocabularies
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    files = read_tokenizer(tmp_path)
    texts = ["good", "bad \x13 byte", "good again", "\x13"]
    fast, slow = (Engine(files, fast=choice).encode(texts) for choice in (True, False))
    assert fast.ids.tolist() == slow.ids.tolist()
    assert fast.offsets.tolist() == slow.offsets.tolist()
    assert fast.referred == 2


class Liar:
    """An engine that is right about everything but one word."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def encode_batch_flat(self, texts: list[str], **options: Any) -> Any:
        return self._engine.encode_batch_flat([text.replace("heron", "crane") for text in texts], **options)


def test_an_engine_that_differs_on_the_first_rows_is_not_used() -> None:
    files = read_tokenizer(tokenizer_folder("qwen3"))
    engine, right = Engine(files), Engine(files, fast=False)
    engine.__dict__["_opened"] = (Liar(engine._opened[0]), "")
    assert engine.fast, "the texts that engines are compared on say nothing of it"
    texts = ["Which bird is this?", "A heron."]
    np.testing.assert_array_equal(engine.encode(texts).ids, right.encode(texts).ids)
    assert (engine.fast, engine.reason) == (False, DISAGREES)


@pytest.mark.parametrize("name", NAMES)
def test_an_ordinary_row_needs_no_reference_engine(name: str) -> None:
    assert "reference_engine" not in encode(renderer(name), chat("u:Which bird is this?", "a:A grey heron,  standing.")).counts
