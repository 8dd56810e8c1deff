"""What of a conversation is trained: everything, turns without their reasoning, turns without empty blocks of it."""

from __future__ import annotations

import pytest

from arrowtune.data.config import DataConfig
from arrowtune.data.render import RenderSpec
from arrowtune.types import Completion, Message
from support.render import CHATML, ORIGIN, chat, encode, skip, tokenizer, trained, with_template
from support.templates import row, template_names, template_renderer

_PLAIN = [name for name in template_names() if not name.endswith("_training")]


def _spans(name: str, what: str, **options: bool) -> list[str] | str:
    preview = template_renderer(name, **options).preview(row(what))
    return preview.skip.reason if preview.skip else [preview.text[start:end] for start, end, _ in preview.spans]


def test_everything_is_all_tokens_but_the_first() -> None:
    whole = with_template(CHATML, train_on="everything")
    for item in (
        chat("s:sys", "u:q", "a:x"),
        chat("u:q", "a:x", "u:more"),
        chat("u:alone"),
        chat("u:<|im_end|>", "a:x"),
        Completion("a prompt", " and its end", ORIGIN),
    ):
        encoded = encode(whole, item)
        assert not encoded.skips
        assert encoded.loss_weights.tolist() == [0.0] + [1.0] * (len(encoded.input_ids) - 1)
    assert whole.preview(chat("u:q", "a:x", "u:more")).text.endswith("<|im_start|>user\nmore<|im_end|>\n")


def test_everything_but_what_a_message_says_of_itself() -> None:
    whole = with_template(CHATML, train_on="everything")
    preview = whole.preview(chat("u:q", Message("assistant", "bad", weight=0.0), "u:r", Message("assistant", "half", weight=0.5)))
    assert [(preview.text[start:end], weight) for start, end, weight in preview.spans] == [
        ("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n", 1.0),
        ("\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n", 1.0),
        ("half<|im_end|>", 0.5),
        ("\n", 1.0),
    ]


def test_everything_needs_no_proof_of_turns() -> None:
    bare = with_template("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}", train_on="everything")
    bare.check_template()
    assert trained(bare, chat("u:q", "a:x")) == [": q\nassistant: x\n"]


def test_everything_with_reasoning_left_out_is_a_contradiction() -> None:
    with pytest.raises(ValueError, match="train_on: everything trains reasoning"):
        DataConfig(train_on="everything", train_on_reasoning=False)


_WITHOUT_REASONING: dict[str, list[str]] = {
    "qwen3": ["First.<|im_end|>", "Second.<|im_end|>"],
    "qwen3_5_nothink": ["First.<|im_end|>", "Second.<|im_end|>"],
    "qwen3_5_think": ["First.<|im_end|>", "Second.<|im_end|>"],
    "qwen3_8": ["First.<|im_end|>", "Second.<|im_end|>"],
    "glm4moe": ["\n<think></think>\nFirst.<|user|>", "Second."],
    "gptoss": [
        "<|channel|>final<|message|>First.<|end|>",
        "<|start|>assistant<|channel|>final<|message|>Second.<|return|>",
    ],
    "muse_glimmer": [
        "<|start|>assistant to=user<|message|>First.<|eot|>",
        "<|start|>assistant to=user<|message|>Second.<|eot|>",
    ],
    "nemotron_3_nano": ["</think>\nFirst.<|im_end|>", "Second.<|im_end|>"],
    "nemotron_3_ultra": ["</think>First.<|im_end|>", "Second.<|im_end|>"],
    "gemma4_v5": ["First.<turn|>", "Second.<turn|>"],
    "diffusion_gemma": ["First.<turn|>", "Second.<turn|>"],
    "lfm2_2_5": ["First.<|im_end|>", "Second.<|im_end|>"],
    "qwen3_training": ["First.<|im_end|>", "Second.<|im_end|>"],
    "phi3": ["First.<|end|>", "Second.<|end|>"],
}


@pytest.mark.parametrize("name", _WITHOUT_REASONING)
def test_reasoning_of_a_trained_turn_is_context(name: str) -> None:
    assert _spans(name, "reasoning", train_on_reasoning=False) == _WITHOUT_REASONING[name]


def test_reasoning_before_a_call_is_context_and_the_call_is_trained() -> None:
    answers = {
        "qwen3": ('<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>', "Yes.<|im_end|>"),
        "gptoss": (
            ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>',
            "<|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        ),
    }
    for name, expected in answers.items():
        assert _spans(name, "reasoning_tool", train_on_reasoning=False) == list(expected)


def test_thoughts_inside_of_content_are_reasoning_too() -> None:
    for name, end in (("qwen2_5", "<|im_end|>"), ("qwen3", "<|im_end|>"), ("qwen3_8", "<|im_end|>"), ("phi3", "<|end|>")):
        found = _spans(name, "thought_in_content", train_on_reasoning=False)
        assert found[-1].endswith("Second." + end)
        assert "Then two" not in "".join(found)
    assert _spans("qwen2_5", "thought_in_content", train_on_reasoning=False) == ["First.<|im_end|>", "Second.<|im_end|>"]
    assert _spans("muse_glimmer", "thought_in_content", train_on_reasoning=False) == [
        *(" to=user<|message|>", "First.<|eot|>"),
        *(" to=user<|message|>", "Second.<|eot|>"),
    ]


def test_the_content_of_thoughts_decides_nothing() -> None:
    quiet = template_renderer("qwen3", train_on_reasoning=False)
    nasty = " \n a </think> b \n\n Omicron <think>\n<|im_end|> \ue000 \n "
    item = chat("u:q", Message("assistant", "Yes.", reasoning=nasty))
    assert trained(quiet, item) == ["Yes.<|im_end|>"]
    same = chat("u:q", Message("assistant", "Why.", reasoning="Why."))
    assert trained(quiet, same) == ["Why.<|im_end|>"]


def test_thoughts_whose_end_is_not_plain_are_a_skip() -> None:
    quiet = template_renderer("qwen2_5", train_on_reasoning=False)
    for content in ("<think>on and on", "<think>a</think>b</think>c", "yes <think>a</think>b"):
        assert skip(quiet, chat("u:q", f"a:{content}")).reason == "reasoning_unproved"
    assert trained(quiet, chat("u:q", "a:yes, I think")) == ["yes, I think<|im_end|>"]


_EMPTY: dict[str, list[str]] = {
    "qwen3": ["First.<|im_end|>", "Second.<|im_end|>", "Third.<|im_end|>"],
    "qwen3_5_think": ["First.<|im_end|>", "Second.<|im_end|>", "Third.<|im_end|>"],
    "qwen3_8": ["First.<|im_end|>", "Second.<|im_end|>", "Third.<|im_end|>"],
    "glm4moe": ["First.<|user|>", "Second.<|user|>", "Third."],
    "nemotron_3_nano": ["First.<|im_end|>", "Second.<|im_end|>", "Third.<|im_end|>"],
    "qwen3_training": ["First.<|im_end|>", "Second.<|im_end|>", "Third.<|im_end|>"],
}


@pytest.mark.parametrize("name", _EMPTY)
def test_B07_an_empty_thought_that_the_template_writes_is_trained_or_context(name: str) -> None:
    assert _spans(name, "multi", train_on_boilerplate=False) == _EMPTY[name]
    assert _spans(name, "multi") != _EMPTY[name]


def test_B07_of_a_template_that_knows_no_reasoning() -> None:
    source = CHATML.replace("+ m.content", "+ ('<think>\n\n</think>\n\n' if m.role == 'assistant' else '') + m.content")
    assert trained(with_template(source, train_on_boilerplate=False), chat("u:q", "a:Yes")) == ["Yes<|im_end|>"]
    assert trained(with_template(source), chat("u:q", "a:Yes")) == ["<think>\n\n</think>\n\nYes<|im_end|>"]


def test_templates_whose_turns_only_prefixes_show_leave_thoughts_out_too() -> None:
    source = (
        "{% macro turn(m) %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
        "{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}"
        "{{ m.content + '<|im_end|>\n' }}{% endmacro %}"
        "{% macro all(ms) %}{% for m in ms %}{{ turn(m) }}{% endfor %}{% endmacro %}{{ all(messages) }}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    thinking, plain = chat("u:q", Message("assistant", "Yes.", reasoning="Hm.")), chat("u:q", "a:Yes.")
    assert trained(with_template(source), thinking) == ["<think>\nHm.\n</think>\n\nYes.<|im_end|>"]
    assert trained(with_template(source, train_on_reasoning=False), thinking) == ["Yes.<|im_end|>"]
    assert trained(with_template(source, train_on_boilerplate=False), plain) == ["Yes.<|im_end|>"]


@pytest.mark.parametrize("name", [name for name in _PLAIN if name not in _EMPTY])
def test_what_the_model_has_to_write_is_no_boilerplate(name: str) -> None:
    for what in ("multi", "reasoning"):
        usual, found = _spans(name, what), _spans(name, what, train_on_boilerplate=False)
        assert [text.replace("\n</think>\n\n", "").replace("</think>", "") for text in usual] == [
            text.replace("\n</think>\n\n", "").replace("</think>", "") for text in found
        ]


def test_the_options_are_part_of_the_identity_and_come_from_the_run_file() -> None:
    files = tokenizer("qwen3")
    usual = RenderSpec(files).identity()
    for option in ("train_on_reasoning", "train_on_boilerplate"):
        changed = RenderSpec(files, **{option: False}).identity()
        assert {key for key in usual if usual[key] != changed[key]} == {option}
    assert DataConfig(train_on_reasoning=False).train_on_reasoning is False
