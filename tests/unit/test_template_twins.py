"""Spans from plain templates against the same templates with generation tags, as transformers reads those.

`trl` ships twins of many templates whose tags say which text is the model's. Ours is found in the plain template. Where
the two differ, the difference is named here, by template, with its reason.
"""

# ruff: noqa: RUF001 - DeepSeek's control tokens are spelled with full-width bars

from __future__ import annotations

import re
from typing import Any

import pytest

from arrowtune.data.render.template import shape_message
from arrowtune.types import Conversation
from support.render import chat
from support.templates import ROWS, row, template_names, template_renderer, template_texts, twins

# The twin tags text that the generation prompt holds: at inference the model is given it and never writes it.
_GIVEN = {
    "deepseek_r1_distill": ("<｜Assistant｜>", "<｜tool▁outputs▁end｜>"),
    "deepseekv3": ("<｜Assistant｜>", "<｜tool▁outputs▁end｜>"),
    "gptoss": ("<|start|>assistant",),
    "muse_glimmer": ("<|start|>assistant",),
    "qwen2_5": ("\n",),  # the prompt is `<|im_start|>assistant\n`, the tag stands before the line break
    # The prompt opens the thought; turns without one close it at once.
    **dict.fromkeys(("qwen3_5_think", "qwen3_6", "qwen3_8"), ("<think>\n",)),
    **dict.fromkeys(
        ("nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"), ("<think>\n", "<think>")
    ),
}
# The twin tags the end of the text too, which follows the end of the last turn.
_BEHIND = {"phi3": "<|endoftext|>", "phi3_5": "<|endoftext|>"}
# These close a turn with the token that opens the next one. The plain template writes none after the last turn, the twin
# makes one up; ids are those of the plain template.
_OPEN_ENDED = {"glm4moe": "<|user|>"}
# Results of tools stand inside of the turn that called. The call ends with the token that opens its result: the template
# writes it too where there is no result yet. The twin does not tag it.
_HANDED_OVER = {"diffusion_gemma": "<|tool_response>"}
# The plain template leaves the thoughts of earlier turns out, and some empty ones; its twin always writes them.
_FORGETS = {"qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "deepseek_r1_distill"}
_THOUGHT = re.compile(r"<think>.*?</think>\n\n", re.DOTALL)

_TOOL_ROWS = ("tool", "tool_null", "tool_again", "parallel", "reasoning_tool")
_IGNORES = "tool_calls_ignored"  # The template does not write the calls: an empty answer is nothing to learn from.
_SKIPPED: dict[str, dict[str, str]] = {
    "deepseek_r1_distill": {
        **dict.fromkeys(("tool", "tool_again", "parallel", "reasoning_tool"), _IGNORES),
        "tool_null": "no_end_of_turn",  # it closes calls only from the second one on
    },
    # A call after a result of a tool follows that result without the text that inference puts there.
    "deepseekv3": {"tool_again": "spans_unproved"},
    "gptoss": {"parallel": _IGNORES},  # it writes the first call of a turn and no other
    **{name: dict.fromkeys(_TOOL_ROWS, _IGNORES) for name in ("lfm2", "llama3", "phi3", "phi3_5", "qwen2_5_vl")},
    **{name: dict.fromkeys(("tool", "tool_again", "parallel", "reasoning_tool"), _IGNORES) for name in ("idefics3", "smolvlm")},
    # What was said before a call is written behind the call's result, and has no end there.
    "diffusion_gemma": {"tool_again": "no_end_of_turn"},
}


def _twin(name: str, item: Conversation) -> tuple[str, list[str]] | None:
    """The render of a tagged template and the texts that it tags, by transformers; None where the template refuses."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    renderer = template_renderer(name)
    messages = [shape_message(message, renderer._chat._shape, {}) for message in item.messages]
    arguments: dict[str, Any] = {"chat_template": template_texts()[name], "return_assistant_tokens_mask": True}
    try:
        texts, tags = utils.render_jinja_template(
            [messages], tools=item.tools and list(item.tools), **arguments, **renderer.spec.files.special_tokens
        )
    except Exception:  # noqa: BLE001 - templates raise whatever they like
        return None
    spans: list[tuple[int, int]] = []
    for start, end in tags[0]:
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        elif end > start:
            spans.append((start, end))
    return texts[0], [texts[0][start:end] for start, end in spans]


def _expected(name: str, tagged: list[str], ours: list[str]) -> list[str]:
    """What the twin tags, less the differences that are named above."""
    found = []
    for text, own in zip(tagged, ours, strict=True):
        text = text.rstrip().removesuffix(_BEHIND.get(name, "\n")).rstrip()
        if name in _FORGETS and "</think>" not in own:
            breaks = own[: len(own) - len(own.lstrip("\n"))]  # the twin strips them after the thought that it adds
            text = _THOUGHT.sub(breaks, text, count=1)
        given = next((given for given in _GIVEN.get(name, ()) if text.startswith(given)), "")
        handed_over = _HANDED_OVER.get(name, "") if text.endswith("<tool_call|>") else ""
        found.append(text.removeprefix(given) + handed_over)
    if name in _OPEN_ENDED:
        found[-1] = found[-1].removesuffix(_OPEN_ENDED[name])
    return found


def _without_date(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d", "DATE", text)


@pytest.mark.parametrize("name", twins())
def test_spans_of_a_plain_template_are_those_of_its_tagged_twin(name: str) -> None:
    renderer = template_renderer(name)
    renderer.check_template()
    compared = 0
    for what in ROWS:
        preview, twin = renderer.preview(row(what)), _twin(f"{name}_training", row(what))
        if (reason := _SKIPPED.get(name, {}).get(what)) is not None:
            assert preview.skip is not None, what
            assert preview.skip.reason == reason, (what, preview.skip)
        elif twin is None:
            assert preview.skip is not None, what
            assert preview.skip.reason == "template_error", (what, preview.skip)
        else:
            assert preview.skip is None, (what, preview.skip)
            text, tagged = twin
            ours = [preview.text[start:end] for start, end, _ in preview.spans]
            if name == "deepseek_r1_distill" and what == "thought_in_content":
                # The plain template cuts the thought and leaves the line breaks behind it; the prompt opens a thought.
                assert ours == ["\n\nFirst.<｜end▁of▁sentence｜>", "\n\nSecond.<｜end▁of▁sentence｜>"]
                continue
            assert ours == _expected(name, tagged, ours), what
            if name not in _FORGETS and name not in _OPEN_ENDED:
                assert _without_date(preview.text) == _without_date(text), what
            compared += 1
    assert compared >= 6


_TAGGED = ["lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", *(f"{name}_training" for name in twins())]


@pytest.mark.parametrize("name", _TAGGED)
def test_tags_of_a_template_of_its_own_are_taken(name: str) -> None:
    renderer = template_renderer(name)
    renderer.check_template()
    for what in ROWS:
        preview, twin = renderer.preview(row(what)), _twin(name, row(what))
        if preview.skip is not None:
            assert preview.skip.reason == ("template_error" if twin is None else _IGNORES), (what, preview.skip)
            continue
        assert twin is not None
        assert _without_date(preview.text) == _without_date(twin[0]), what
        ours = "".join(preview.text[start:end] for start, end, _ in preview.spans)
        assert re.sub(r"\s", "", ours) == re.sub(r"\s", "", "".join(twin[1])), what
        assert not ours.endswith("\n")


_CALLS_OF_LLAMA = {
    "tool": ['{"name": "weather", "parameters": {"city": "Rome"}}<|eot_id|>', "Yes.<|eot_id|>"],
    "parallel": "template_error",  # it takes one call a turn
}
_CALL_OF_GEMMA = '<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|><|tool_response>'
_WITHOUT_TWIN: dict[str, dict[str, Any]] = {
    "llama3_1": {"multi": ["First.<|eot_id|>", "Second.<|eot_id|>", "Third.<|eot_id|>"], **_CALLS_OF_LLAMA},
    "llama3_2": {"multi": ["First.<|eot_id|>", "Second.<|eot_id|>", "Third.<|eot_id|>"], **_CALLS_OF_LLAMA},
    "gemma4": {
        "multi": ["First.<turn|>", "Second.<turn|>", "Third.<turn|>"],
        "system": ["First.<turn|>", "Second.<turn|>"],
        "tool": [_CALL_OF_GEMMA, "Yes.<turn|>"],
        "tool_again": [
            *(_CALL_OF_GEMMA, "I look.<turn|>", _CALL_OF_GEMMA.replace("weather", "clock"), "Now the time.<turn|>"),
            *("Yes.<turn|>", "Any time.<turn|>"),
        ],
    },
    "gemma4_v2": {
        "multi": ["First.<turn|>", "Second.<turn|>", "Third.<turn|>"],
        "tool": ['<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|><turn|>', "Yes.<turn|>"],
    },
    "gemma4_v3": {"multi": ["First.<turn|>", "Second.<turn|>", "Third.<turn|>"]},
    "gemma4_v4": {"multi": ["First.<turn|>", "Second.<turn|>", "Third.<turn|>"]},
    "gemma4_v5": {
        "reasoning": ["First.<turn|>", "<|channel>thought\nThen two.\n<channel|>Second.<turn|>"],
        "tool": [_CALL_OF_GEMMA, "Yes.<turn|>"],
        "tool_again": "no_end_of_turn",
    },
}


@pytest.mark.parametrize("name", _WITHOUT_TWIN)
def test_spans_of_templates_without_a_twin(name: str) -> None:
    renderer = template_renderer(name)
    renderer.check_template()
    for what, expected in _WITHOUT_TWIN[name].items():
        preview = renderer.preview(row(what))
        found = preview.skip.reason if preview.skip else [preview.text[start:end] for start, end, _ in preview.spans]
        assert found == expected, what


def test_every_template_is_covered() -> None:
    plain = {name for name in template_names() if not name.endswith("_training")}
    assert plain == {*twins(), *_WITHOUT_TWIN, "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"}
    assert len(template_names()) > 60


def test_a_turn_that_only_the_next_header_closes_ends_with_that_token_and_the_open_end_is_counted() -> None:
    glm = template_renderer("glm4moe")
    encoded = glm.encode([row("multi"), row("single")])
    assert encoded.counts["open_ended"] == 2
    forged = glm.preview(chat("u:q", "a:x<|user|>", "u:r", "a:y"))
    assert [forged.text[start:end].removeprefix("\n<think></think>\n") for start, end, _ in forged.spans] == [
        "x<|user|><|user|>",
        "y",
    ]
    assert glm.stop_token_ids() == tuple(glm.engine.token_id(text) for text in ("<|observation|>", "<|user|>", "<|endoftext|>"))
