"""What a template takes, found out by rendering small conversations.

Everything here runs once per template. The questions: how does a null content have to be written, what form of tool
arguments does it want, does it take parts, does it write calls of tools and reasoning.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from arrowtune.data.render.template import (
    ChatTemplate,
    Marked,
    NullPolicy,
    PartsPolicy,
    Shape,
    TemplateFailure,
    shape_message,
)
from arrowtune.types import Message

USER, SYSTEM = Message("user", "Quercus?"), Message("system", "Brief.")
ARGUMENTS: dict[str, Any] = {"city": "Rome"}
TOOL = Message("tool", "Sunny.", extra={"name": "weather", "tool_call_id": "call00001"})
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "A city."}},
                "required": ["city"],
            },
        },
    }
]


def call_of(content: str | None, arguments: Any, reasoning: str | None = None) -> Message:
    """An assistant turn that calls a tool."""
    call = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return Message("assistant", content, tool_calls=[call], reasoning=reasoning)


def find_shape(template: ChatTemplate) -> Shape:
    """How messages must be written for this template."""
    base = replace(_call_shape(template), parts=_parts_shape(template))
    policies: tuple[NullPolicy, ...] = ("drop", "keep", "empty")
    for nulls in policies:
        shape = replace(base, nulls=nulls)
        turns = [USER, call_of(None, ARGUMENTS), TOOL]
        marked = (
            try_render(template, shape, turns)
            or try_render(template, shape, turns[:2])
            or try_render(template, shape, turns, tools=TOOLS)
        )
        if marked is not None and "None" not in marked.text and "null" not in marked.text:
            break
    return replace(shape, reasoning=_writes_reasoning(template, shape))


def _parts_shape(template: ChatTemplate) -> PartsPolicy:
    turns = [USER, Message("assistant", "Alpha")]

    def works(policy: PartsPolicy) -> bool:
        marked = try_render(template, Shape(parts=policy), turns)
        if marked is None or "'text'" in marked.text or '"text"' in marked.text:
            return False
        return "Quercus?" in marked.text and "Alpha" in marked.text

    if not works("wrap"):
        return "join"
    return "keep" if works("keep") else "wrap"


def _writes_reasoning(template: ChatTemplate, shape: Shape) -> bool:
    answer = [USER, Message("assistant", "Alpha", reasoning="Omicron")]
    call = [USER, call_of("", ARGUMENTS, "Omicron")]
    found = [try_render(template, shape, answer), try_render(template, shape, call, tools=TOOLS)]
    return found[0] is None or any(marked is not None and "Omicron" in marked.text for marked in found)


def _call_shape(template: ChatTemplate) -> Shape:
    policies: tuple[NullPolicy, ...] = ("drop", "keep")

    def text(arguments: Any) -> str | None:
        for content, nulls, rest in itertools.product(("", None), policies, ([], [TOOL])):
            marked = try_render(template, Shape(nulls=nulls), [USER, call_of(content, arguments), *rest], tools=TOOLS)
            if marked is not None and "Rome" in marked.text:
                return marked.text
        return None

    as_object, as_string = text(ARGUMENTS), text('{"city": "Rome"}')
    if as_object is None or "{'city'" in as_object:
        return Shape(arguments="string" if as_string is not None else "as_written", calls=as_string is not None)
    return Shape(arguments="as_written" if as_object == as_string else "object")


def try_render(
    template: ChatTemplate,
    shape: Shape,
    turns: Sequence[Message],
    *,
    tools: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    open_turn: bool = False,
) -> Marked | None:
    """The render of turns; None where the template refuses them."""
    messages = [shape_message(message, shape, {}) for message in turns]
    try:
        return template.render(messages, tools, kwargs, add_generation_prompt=open_turn)
    except TemplateFailure:
        return None
