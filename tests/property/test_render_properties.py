"""Random conversations of nasty text: no turn but the assistant's is trained, and ids are those of the one full render."""

# ruff: noqa: RUF001 - DeepSeek's control tokens are spelled with full-width bars

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrowtune.types import Message
from support.render import NAMES, chat, encode, ids_of, renderer, trained_runs

_SPELLED = [
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "<|eot_id|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<bos>",
    "<tool_call>",
    "</s>",
]
_ODD = [
    " ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "\u00a0",
    "\u200b",
    "\u200d",
    "e\u0301",
    "👩‍👩‍👧",
    "日本",
    "ß",
    "'s",
    "1234",
    "{{ x }}",
    "{% if %}",
    "<br>",
]
_plain = st.one_of(st.sampled_from(_ODD), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=6))
_any = st.one_of(_plain, st.sampled_from(_SPELLED))


def _texts(pieces: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    # A letter first: what a token that straddles the start of a span does has its own test.
    return st.lists(pieces, max_size=6).map(lambda parts: "x" + "".join(parts))


def _chats(pieces: st.SearchStrategy[str]) -> st.SearchStrategy[list[Message]]:
    text = _texts(pieces)
    rounds = st.lists(st.tuples(text, text), min_size=1, max_size=3)
    start = st.one_of(st.none(), text)
    return st.builds(
        lambda system, pairs: [
            *([Message("system", system)] if system is not None else []),
            *(message for asked, said in pairs for message in (Message("user", asked), Message("assistant", said))),
        ],
        start,
        rounds,
    )


def _qwen(content: str, last: bool) -> str:
    return ("<think>\n\n</think>\n\n" if last else "") + content + "<|im_end|>"


_WRITES: dict[str, Callable[[str, bool], str]] = {
    "qwen3": _qwen,
    "llama3_1": lambda content, last: content.strip() + "<|eot_id|>",
    "gemma3": lambda content, last: content.strip() + "<end_of_turn>",
    "deepseek_v3": lambda content, last: content + "<｜end▁of▁sentence｜>",
}
"""What each template makes of an answer, written without Jinja."""
_TURN_ENDS = {"qwen3": "<|im_end|>", "llama3_1": "<|eot_id|>", "gemma3": "<end_of_turn>", "deepseek_v3": "<｜end▁of▁sentence｜>"}


def _answers(name: str, turns: list[Message]) -> list[str]:
    said = [str(turn.content) for turn in turns if turn.role == "assistant"]
    written = [_WRITES[name](content, index == len(said) - 1) for index, content in enumerate(said)]
    # Decoding gives what the tokenizer's normalizer made of the text.
    normal: dict[str, Callable[[str], str]] = {
        "qwen3": lambda text: unicodedata.normalize("NFC", text),
        "gemma3": lambda text: text.replace("▁", " "),
    }
    return [normal.get(name, str)(text) for text in written]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(data=st.data())
def test_ids_are_those_of_the_one_render_and_answers_alone_are_trained(name: str, data: st.DataObject) -> None:
    subject, reference = renderer(name), renderer(name, False)
    turns = data.draw(_chats(_plain))
    item = chat(*turns)
    encoded = encode(subject, item)
    whole = reference.engine.encode([subject.preview(item).text])
    assert ids_of(encoded) == whole.ids.tolist()
    assert "rows_with_control_text" not in encoded.counts
    assert trained_runs(subject, encoded) == _answers(name, turns)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(data=st.data())
def test_control_text_anywhere_moves_neither_turns_nor_masks(name: str, data: st.DataObject) -> None:
    subject, reference = renderer(name), renderer(name, False)
    turns = data.draw(_chats(_any))
    item = chat(*turns)
    encoded = encode(subject, item)
    assert not encoded.skips
    assert ids_of(encoded) == ids_of(encode(reference, item))
    end = subject.engine.token_id(_TURN_ENDS[name])
    harmless = encode(subject, chat(*(Message(turn.role, "x") for turn in turns)))
    assert ids_of(encoded).count(end) == ids_of(harmless).count(end)
    assert trained_runs(subject, encoded) == _answers(name, turns)
