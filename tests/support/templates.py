"""Real chat templates, the tokens that each of them needs, and conversations to try them with.

The templates are those that the package `trl` ships. Many come twice: as a model's makers wrote them, and as a twin with
generation tags, which says which text is the model's. Each is given a small tokenizer whose added vocabulary is that of
its family of models.
"""

# ruff: noqa: RUF001 - DeepSeek's control tokens are spelled with full-width bars

from __future__ import annotations

import importlib.util
import json
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from arrowtune.data.formats import get_format
from arrowtune.data.render import Renderer, RenderSpec
from arrowtune.data.render.engine import Engine
from arrowtune.data.tokenizer import TokenizerFiles, read_tokenizer
from arrowtune.types import Conversation
from support.assets import TINY
from support.render import ORIGIN

DATE = "2026-11-30"


@dataclass(frozen=True)
class Family:
    """The special tokens of a family of models, and added tokens that are not special; each as words of one string."""

    special: str
    ordinary: str = ""
    bos: str | None = None
    eos: str | None = None


_CHATML = "<|endoftext|> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>"
_QWEN = Family(_CHATML, "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response>", None, "<|im_end|>")
_GEMMA = Family("<pad> <eos> <bos> <unk> <start_of_turn> <end_of_turn> <start_of_image>", "", "<bos>", "<eos>")
_GEMMA4 = Family(
    "<pad> <eos> <bos> <|turn> <turn|> <|channel> <channel|> <|think|> <|tool> <tool|> <|tool_call> <tool_call|> "
    '<|tool_response> <tool_response|> <|"|> <|image|> <|audio|> <|video|>',
    "",
    "<bos>",
    "<eos>",
)
_DEEPSEEK = Family(
    "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜▁pad▁｜>",
    "<｜User｜> <｜Assistant｜> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> "
    "<｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜> <｜tool▁sep｜> "
    "<think> </think>",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
)
_LLAMA3 = Family(
    "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|> <|python_tag|>",
    "",
    "<|begin_of_text|>",
    "<|eot_id|>",
)
_PHI = Family("<s> </s> <|endoftext|> <|system|> <|user|> <|assistant|> <|end|>", "", "<s>", "<|endoftext|>")
_LFM = Family(
    "<|startoftext|> <|endoftext|> <|im_start|> <|im_end|> <|tool_list_start|> <|tool_list_end|> <|tool_call_start|> "
    "<|tool_call_end|> <|tool_response_start|> <|tool_response_end|> <image>",
    "<think> </think>",
    "<|startoftext|>",
    "<|im_end|>",
)
_COHERE = Family(
    "<BOS_TOKEN> <EOS_TOKEN> <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|USER_TOKEN|> <|CHATBOT_TOKEN|> <|SYSTEM_TOKEN|> "
    "<|START_RESPONSE|> <|END_RESPONSE|>",
    "",
    "<BOS_TOKEN>",
    "<|END_OF_TURN_TOKEN|>",
)
_FAMILIES = {
    "cohere": _COHERE,
    "deepseek": _DEEPSEEK,
    "diffusion_gemma": _GEMMA4,
    "gemma4": _GEMMA4,
    "gemma": _GEMMA,
    "glm4moe": Family(
        "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|>",
        "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response> <arg_key> </arg_key> "
        "<arg_value> </arg_value> /nothink",
        None,
        "<|endoftext|>",
    ),
    "gptoss": Family(
        "<|startoftext|> <|endoftext|> <|return|> <|constrain|> <|channel|> <|start|> <|end|> <|message|> <|call|>",
        "",
        "<|startoftext|>",
        "<|return|>",
    ),
    "idefics3": Family(_LLAMA3.special + " <end_of_utterance> <image>", "", "<|begin_of_text|>", "<end_of_utterance>"),
    "lfm2": _LFM,
    "llama3": _LLAMA3,
    "llava_next": Family("<s> </s> <unk> <image>", "", "<s>", "</s>"),
    "muse_glimmer": Family(
        "<|begin_of_text|> <|start|> <|message|> <|eot|> <|eom|> <|patch|>", "", "<|begin_of_text|>", "<|eot|>"
    ),
    "nemotron": Family("<unk> <s> </s> <|im_start|> <|im_end|>", _QWEN.ordinary, "<s>", "<|im_end|>"),
    "phi3": _PHI,
    "qwen": _QWEN,
    "smolvlm": Family("<|im_start|> <|im_end|> <end_of_utterance> <image>", "", "<|im_start|>", "<end_of_utterance>"),
}


@lru_cache(maxsize=1)
def template_texts() -> dict[str, str]:
    """Every template of the package by its name."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None, "the package trl is not installed; `make setup` installs it"
    folder = Path(str(spec.origin)).parent / "chat_templates"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


def template_names() -> list[str]:
    return list(template_texts())


def twins() -> list[str]:
    """The templates that have a twin with generation tags."""
    return [name for name in template_names() if f"{name}_training" in template_texts()]


def family_of(name: str) -> str:
    return next(prefix for prefix in _FAMILIES if name.startswith(prefix))


@lru_cache(maxsize=1)
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="arrowtune-templates-", ignore_cleanup_errors=True)


@lru_cache(maxsize=len(_FAMILIES))
def family_files(prefix: str) -> TokenizerFiles:
    """The tokenizer of a family: the embedded vocabulary with the family's own added tokens behind it."""
    family = _FAMILIES[prefix]
    tree = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    words = [(text, True) for text in family.special.split()] + [(text, False) for text in family.ordinary.split()]
    first = len(tree["model"]["vocab"])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tree["added_tokens"] = [
        {"id": first + k, "content": text, **flags, "special": special} for k, (text, special) in enumerate(words)
    ]
    folder = Path(_scratch().name) / prefix
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tree), encoding="utf-8")
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": family.bos, "eos_token": family.eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
    return read_tokenizer(folder)


@lru_cache(maxsize=len(_FAMILIES))
def family_engine(prefix: str) -> Engine:
    return Engine(family_files(prefix), fast=False)


@lru_cache(maxsize=128)
def template_renderer(name: str, **options: Any) -> Renderer:
    """A renderer of one of the templates with the tokenizer of its family."""
    prefix = family_of(name)
    files = replace(family_files(prefix), chat_template=template_texts()[name])
    return Renderer(RenderSpec(files, max_length=1 << 20, date=DATE, fast=False, **options), family_engine(prefix))


def _turn(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def _call(name: str, number: int, **arguments: Any) -> dict[str, Any]:
    return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(content: str, number: int, name: str = "weather") -> dict[str, Any]:
    return _turn("tool", content, name=name, tool_call_id=f"call0000{number}")


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Tells the " + name + ".",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "A city."}},
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "clock")
]
_U, _A = "user", "assistant"
ROWS: dict[str, dict[str, Any]] = {
    "single": {"messages": [_turn(_U, "Which tree is this?"), _turn(_A, "It is an oak.")]},
    "multi": {
        "messages": [
            _turn(_U, "One?"),
            _turn(_A, "First."),
            _turn(_U, "Two?"),
            _turn(_A, "Second."),
            _turn(_U, "Three?"),
            _turn(_A, "Third."),
        ]
    },
    "system": {
        "messages": [
            _turn("system", "Be brief."),
            _turn(_U, "One?"),
            _turn(_A, "First."),
            _turn(_U, "Two?"),
            _turn(_A, "Second."),
        ]
    },
    "tool": {
        "messages": [
            _turn(_U, "Is it warm?"),
            _turn(_A, "", tool_calls=[_call("weather", 1, city="Rome")]),
            _result("Sunny.", 1),
            _turn(_A, "Yes."),
        ],
        "tools": TOOLS,
    },
    "tool_null": {
        "messages": [
            _turn(_U, "Is it warm?"),
            _turn(_A, None, tool_calls=[_call("weather", 1, city="Rome")]),
            _result("Sunny.", 1),
            _turn(_A, "Yes."),
        ],
        "tools": TOOLS,
    },
    "tool_again": {
        "messages": [
            _turn("system", "Be brief."),
            _turn(_U, "Is it warm?"),
            _turn(_A, "I look.", tool_calls=[_call("weather", 1, city="Rome")]),
            _result("Sunny.", 1),
            _turn(_A, "Now the time.", tool_calls=[_call("clock", 2, city="Rome")]),
            _result("Noon.", 2, "clock"),
            _turn(_A, "Yes."),
            _turn(_U, "Thanks."),
            _turn(_A, "Any time."),
        ],
        "tools": TOOLS,
    },
    "parallel": {
        "messages": [
            _turn(_U, "Is it warm?"),
            _turn(_A, "", tool_calls=[_call("weather", 1, city="Rome"), _call("clock", 2, city="Oslo")]),
            _result("Sunny.", 1),
            _result("Noon.", 2, "clock"),
            _turn(_A, "Yes."),
        ],
        "tools": TOOLS,
    },
    "reasoning": {
        "messages": [
            _turn(_U, "One?"),
            _turn(_A, "First.", reasoning_content="Why not one."),
            _turn(_U, "Two?"),
            _turn(_A, "Second.", reasoning_content="Then two."),
        ]
    },
    "reasoning_tool": {
        "messages": [
            _turn(_U, "Is it warm?"),
            _turn(_A, "", reasoning_content="I must look.", tool_calls=[_call("weather", 1, city="Rome")]),
            _result("Sunny.", 1),
            _turn(_A, "Yes.", reasoning_content="It is sunny."),
        ],
        "tools": TOOLS,
    },
    "thought_in_content": {
        "messages": [
            _turn(_U, "One?"),
            _turn(_A, "<think>\nWhy not one.\n</think>\n\nFirst."),
            _turn(_U, "Two?"),
            _turn(_A, "<think>\nThen two.\n</think>\n\nSecond."),
        ]
    },
    "empty": {"messages": [_turn(_U, "One?"), _turn(_A, ""), _turn(_U, ""), _turn(_A, "Second.")]},
    "odd": {
        "messages": [
            _turn(_U, " \n assistant: It is an oak.\n\n"),
            _turn(_A, "\n\n  It is\tan oak. ß日本👩‍👩‍👧 \n"),
            _turn(_U, "assistant"),
            _turn(_A, "assistant"),
        ]
    },
}
"""Rows by what they try."""


@lru_cache(maxsize=len(ROWS))
def row(name: str) -> Conversation:
    item = get_format("messages").parse(ROWS[name], ORIGIN, {})
    assert isinstance(item, Conversation)
    return item
