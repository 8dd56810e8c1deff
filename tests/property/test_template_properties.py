"""Random conversations of nasty text through every real template: only the model's text is trained, and ids are transformers'."""

# ruff: noqa: RUF001 - DeepSeek's control tokens are spelled with full-width bars

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrowtune.data.render.template import shape_message
from arrowtune.types import Conversation, Message
from support.render import chat, encode, ids_of, trained_runs
from support.templates import TOOLS, family_files, family_of, template_names, template_renderer, template_texts

_FEW, _MANY = 4, 60
_PLAIN = [name for name in template_names() if not name.endswith("_training")]
_ODD = [
    *(" ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u200b", "e\u0301", "👩‍👩‍👧", "日本", "ß"),
    *("'s", "17", "{{ x }}", "{% if %}", "<br>"),
]
_SPELLED = [
    *("<|im_end|>", "<|im_start|>assistant\n", "assistant", "<|user|>", "[/INST]", "</s>", "<end_of_turn>", "<|end|>"),
    *("<eos>", "<|eot_id|>", "<|END_OF_TURN_TOKEN|>", "<turn|>", "<|return|>", "<｜end▁of▁sentence｜>", "<|eot|>"),
]
_THOUGHTS = ["<think>", "</think>", "<tool_call>", "<tool_response>", "<|channel>", "<channel|>"]
_REASONING = [
    *("qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_8", "qwen3_training", "qwen3_8_training", "glm4moe", "gptoss"),
    *("muse_glimmer", "nemotron_3_nano", "nemotron_3_ultra", "gemma4", "gemma4_v5", "diffusion_gemma", "lfm2_2_5", "phi3"),
]
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d\d [A-Z][a-z]{2} \d{4}")
_odd = st.one_of(st.sampled_from(_ODD), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="QZ"), max_size=5))

Writer = Callable[[str, bool], str]


def _writes(before: str = "", after: str = "", strip: Callable[[str], str] = str) -> Writer:
    return lambda said, last: before + strip(said) + after


_WRITES: dict[str, Writer] = {
    "cohere": _writes(after="<|END_OF_TURN_TOKEN|>", strip=str.strip),
    "cohere2": _writes(after="<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
    "deepseek": _writes(after="<｜end▁of▁sentence｜>"),
    "gemma4": _writes(after="<turn|>", strip=str.strip),
    "diffusion_gemma": _writes(after="<turn|>", strip=str.strip),
    "gemma": _writes(after="<end_of_turn>", strip=str.strip),
    "glm4moe": lambda said, last: "\n<think></think>\n" + said.strip() + ("" if last else "<|user|>"),
    "gptoss": lambda said, last: "<|channel|>final<|message|>" + said + ("<|return|>" if last else "<|end|>"),
    "idefics3": _writes(" ", "<end_of_utterance>"),
    "smolvlm": _writes(" ", "<end_of_utterance>"),
    "lfm2": _writes(after="<|im_end|>"),
    "llama3": _writes(after="<|eot_id|>", strip=str.strip),
    "llava_next": _writes(" ", "</s>"),
    "muse_glimmer": _writes(" to=user<|message|>", "<|eot|>"),
    "nemotron": _writes("</think>", "<|im_end|>", str.rstrip),
    "phi3": _writes(after="<|end|>"),
    "qwen3_5_nothink": _writes(after="<|im_end|>", strip=str.strip),
    "qwen3_5_think": lambda said, last: ("\n</think>\n\n" if last else "") + said.strip() + "<|im_end|>",
    "qwen3_6": lambda said, last: ("\n</think>\n\n" if last else "") + said.strip() + "<|im_end|>",
    "qwen3_8": _writes("\n</think>\n\n", "<|im_end|>", str.strip),
    "qwen3_instruct_2507": _writes(after="<|im_end|>"),
    "qwen3_vl": _writes(after="<|im_end|>"),
    "qwen3": lambda said, last: ("<think>\n\n</think>\n\n" if last else "") + said + "<|im_end|>",
    "qwen2_5": _writes(after="<|im_end|>"),
}
"""What each template makes of an answer that begins with a letter, written without Jinja; the longest name that fits."""


def _answers(name: str, turns: list[Message]) -> list[str]:
    writes = next(
        writes for prefix, writes in _WRITES.items() if name.startswith(prefix) and (prefix, name) != ("cohere", "cohere2")
    )
    said = [str(turn.content) for turn in turns if turn.role == "assistant"]
    return [writes(text, index == len(said) - 1) for index, text in enumerate(said)]


def _texts(pieces: st.SearchStrategy[str], around: str) -> st.SearchStrategy[str]:
    return st.lists(pieces, max_size=5).map(lambda parts: around + "".join(parts))


def _chats(pieces: st.SearchStrategy[str]) -> st.SearchStrategy[list[Message]]:
    """Turns of users begin with a letter that no answer holds; answers begin with a letter."""
    asked, said = _texts(pieces, "Q"), _texts(pieces, "x")
    rounds = st.lists(st.tuples(asked, said), min_size=1, max_size=3)

    def build(system: str | None, pairs: list[tuple[str, str]]) -> list[Message]:
        start = [Message("system", system)] if system is not None else []
        return [*start, *(turn for ask, say in pairs for turn in (Message("user", ask), Message("assistant", say)))]

    return st.builds(build, st.one_of(st.none(), asked), rounds)


@st.composite
def _agents(draw: st.DrawFn, odder: tuple[str, ...] = (*_SPELLED, *_THOUGHTS)) -> list[Message]:
    """Conversations with calls of tools, results and reasoning; what is not the model's holds the letter Q, reasoning Z."""
    pieces = st.one_of(_odd, st.sampled_from(odder))
    asked, said, thought = _texts(pieces, "Q"), _texts(pieces, "x"), st.one_of(st.none(), _texts(pieces, "Z"))
    turns = [Message("system", draw(asked))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 2))):
        turns.append(Message("user", draw(asked)))
        for number in range(draw(st.integers(0, 2))):
            calls = [
                {"id": f"call0000{k}", "type": "function", "function": {"name": "weather", "arguments": {"city": draw(said)}}}
                for k in range(draw(st.integers(1, 2)))
            ]
            content = draw(st.one_of(st.none(), st.just(""), said))
            turns.append(Message("assistant", content, tool_calls=calls, reasoning=draw(thought)))
            fields = [{"name": "weather", "tool_call_id": call["id"]} for call in calls[: 1 + number]]
            turns.extend(Message("tool", draw(asked), extra=field) for field in fields)
        turns.append(Message("assistant", draw(said), reasoning=draw(thought)))
    return turns


@lru_cache(maxsize=32)
def _transformers(prefix: str) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(family_files(prefix).folder)


def _reference(name: str, item: Conversation) -> tuple[str, list[int]] | None:
    """What transformers renders and encodes, but for the date; None where it leaves out the null that the template asks for."""
    tokenizer = _transformers(family_of(name))
    renderer = template_renderer(name)
    messages = [shape_message(turn, renderer._chat._shape, {}) for turn in item.messages]
    options: dict[str, Any] = {"chat_template": template_texts()[name], "tools": item.tools}
    if renderer._chat._shape.nulls == "keep" and any(turn.content is None for turn in item.messages):
        return None
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    if "strftime_now" not in template_texts()[name]:
        return text, tokenizer.apply_chat_template(messages, **options)["input_ids"]
    ours = renderer.preview(item).text
    assert _DATE.sub("DATE", ours) == _DATE.sub("DATE", text)
    return ours, tokenizer(ours, add_special_tokens=False)["input_ids"]


def _check_answers(name: str, turns: list[Message]) -> None:
    renderer, item = template_renderer(name), chat(*turns)
    encoded = encode(renderer, item)
    if encoded.skips:
        assert encoded.skips[0].reason == "template_error", encoded.skips[0]
        assert turns[0].role == "system", "only a system turn may be refused"
        return
    # A token that straddles the start of a span is context.
    expected = _answers(name, turns)
    runs = trained_runs(renderer, encoded)
    assert [run.lstrip("\n") for run in runs] == [answer.lstrip("\n") for answer in expected]


def _check_ids(name: str, item: Conversation) -> None:
    renderer = template_renderer(name)
    encoded = encode(renderer, item)
    if not encoded.skips and (reference := _reference(name, item)) is not None:
        text, ids = reference
        assert renderer.preview(item).text == text
        if "rows_with_control_text" not in encoded.counts:
            assert ids_of(encoded) == ids


def _check_agents(name: str, turns: list[Message]) -> None:
    renderer, item = template_renderer(name), chat(*turns, tools=TOOLS)
    encoded = encode(renderer, item)
    if encoded.skips:
        known = {"template_error", "spans_unproved", "no_end_of_turn", "tool_calls_ignored", "control_text_unproved"}
        assert encoded.skips[0].reason in known
        return
    runs = trained_runs(renderer, encoded)
    assert runs
    assert not [run for run in runs if "Q" in run]


def _check_silent(name: str, turns: list[Message]) -> None:
    renderer, item = template_renderer(name, train_on_reasoning=False), chat(*turns, tools=TOOLS)
    encoded = encode(renderer, item)
    if encoded.skips:
        usual = encode(template_renderer(name), item)
        assert usual.skips, encoded.skips[0]
        return
    runs = trained_runs(renderer, encoded)
    assert not [run for run in runs if "Z" in run or "Q" in run]
    assert str(turns[-1].content).strip() in runs[-1]


_simple, _spelled = _chats(_odd), _chats(st.one_of(_odd, st.sampled_from(_SPELLED)))


@pytest.mark.parametrize("name", _PLAIN)
@settings(max_examples=_FEW)
@given(turns=_spelled)
def test_trained_tokens_are_the_answers_and_nothing_else(name: str, turns: list[Message]) -> None:
    _check_answers(name, turns)


@pytest.mark.parametrize("name", template_names())
@settings(max_examples=_FEW)
@given(turns=_simple)
def test_ids_are_those_of_transformers(name: str, turns: list[Message]) -> None:
    _check_ids(name, chat(*turns))


@pytest.mark.parametrize("name", template_names())
@settings(max_examples=_FEW)
@given(turns=_agents())
def test_no_token_of_a_user_a_system_or_a_tool_is_trained(name: str, turns: list[Message]) -> None:
    _check_agents(name, turns)


@pytest.mark.parametrize("name", _REASONING)
@settings(max_examples=_FEW)
@given(turns=_agents(tuple(_SPELLED)))
def test_no_token_of_reasoning_is_trained_and_answers_are(name: str, turns: list[Message]) -> None:
    _check_silent(name, turns)


@pytest.mark.slow
@pytest.mark.parametrize("name", template_names())
@settings(max_examples=_MANY)
@given(simple=_simple, spelled=_spelled, agents=_agents(), thinkers=_agents(tuple(_SPELLED)))
def test_many_conversations(
    name: str, simple: list[Message], spelled: list[Message], agents: list[Message], thinkers: list[Message]
) -> None:
    if name in _PLAIN:
        _check_answers(name, spelled)
    _check_ids(name, chat(*simple))
    _check_ids(name, chat(*agents, tools=TOOLS))
    _check_agents(name, agents)
    if name in _REASONING:
        _check_silent(name, thinkers)
