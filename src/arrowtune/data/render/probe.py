"""What a template takes and writes, found out by rendering small conversations.

Everything here runs once per template and set of arguments. The questions: how does a null content have to be written,
what form of tool arguments does it want, with what text does inference open an assistant turn, what token ends it.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arrowtune.data.render.template import ChatTemplate, Marked, Shape, TemplateFailure, shape_message
from arrowtune.types import Message

_USER, _SYSTEM = Message("user", "Quercus?"), Message("system", "Brief.")
_ARGUMENTS: dict[str, Any] = {"city": "Rome"}
_TOOL = Message("tool", "Sunny.", extra={"name": "weather", "tool_call_id": "call00001"})
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "A city."}}, "required": ["city"]},
        },
    }
]
_ANSWERS = ("Alpha", "Zulu", "7even")


def _call(content: str | None, arguments: Any) -> Message:
    call = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return Message("assistant", content, tool_calls=[call])


@dataclass(frozen=True, slots=True)
class TurnRules:
    """How an assistant turn begins and ends in a template's output.

    Attributes:
        prompts: What inference has written when the model starts to answer, longest first; "" where it writes nothing.
        headers: What every earlier assistant turn begins with, longest first.
        ends: The tokens that may end a turn.
        after: Some ends follow the text of the turn instead of closing it.
        structural: Marks show where the turns are; else only prefixes can.
        tagged: The template has generation tags, which are taken as they are.
    """

    prompts: tuple[str, ...]
    headers: tuple[str, ...]
    ends: tuple[str, ...]
    after: bool
    structural: bool
    tagged: bool


def find_shape(template: ChatTemplate) -> Shape:
    """How messages must be written for this template."""
    arguments = _arguments_shape(template)
    parts = _takes_parts(template)
    for nulls in ("drop", "keep", "empty"):
        shape = Shape(nulls=nulls, arguments=arguments, parts=parts)  # type: ignore[arg-type]
        turns = [_USER, _call(None, _ARGUMENTS), _TOOL]
        marked = _try(template, shape, turns) or _try(template, shape, turns[:2]) or _try(template, shape, turns, tools=_TOOLS)
        if marked is not None and "None" not in marked.text and "null" not in marked.text:
            return shape
    return Shape(nulls="empty", arguments=arguments, parts=parts)


def _takes_parts(template: ChatTemplate) -> bool:
    turn = Message("user", [{"type": "text", "text": "Quercus?"}])
    answer = Message("assistant", [{"type": "text", "text": "Alpha"}])
    marked = _try(template, Shape(parts=True), [turn, answer])
    return marked is not None and "Quercus?" in marked.text and "Alpha" in marked.text and "'text'" not in marked.text and '"text"' not in marked.text


def _arguments_shape(template: ChatTemplate) -> Any:
    def text(arguments: Any) -> str | None:
        for content in ("", None):
            for nulls in ("drop", "keep"):
                marked = _try(template, Shape(nulls=nulls), [_USER, _call(content, arguments)], tools=_TOOLS)  # type: ignore[arg-type]
                if marked is not None and "Rome" in marked.text:
                    return marked.text
        return None

    as_object, as_string = text(_ARGUMENTS), text('{"city": "Rome"}')
    if as_object is None or "{'city'" in as_object:
        return "string" if as_string is not None else "as_written"
    return "as_written" if as_object == as_string else "object"


def find_rules(
    template: ChatTemplate, shape: Shape, template_kwargs: Mapping[str, Any], ends_with_token: Callable[[str], str], starts_with_token: Callable[[str], str]
) -> TurnRules:
    """Probe how assistant turns begin and end.

    Args:
        template: The template.
        shape: How it takes messages.
        template_kwargs: Arguments of the rows the rules are for.
        ends_with_token: The longest added token that a text ends with, or "".
        starts_with_token: The longest added token that a text starts with, or "".
    """
    prompts: set[str] = set()
    ends: set[str] = set()
    structural, after, tagged = False, False, False
    for turns, tools in _openings():
        full = _try(template, shape, [*turns, Message("assistant", "Alpha")], tools=tools, kwargs=template_kwargs)
        if full is None:
            continue
        tagged = tagged or bool(full.generations)
        prompt = _try(template, shape, turns, tools=tools, kwargs=template_kwargs, open_turn=True)
        region = _region(full, len(turns))
        if region is None or prompt is None:
            continue
        structural = True
        start, end = region
        if prompt.text[:start] == full.text[:start]:
            prompts.add(prompt.text[start:])
    headers = _headers(template, shape, template_kwargs)
    for full, (start, end) in _answers(template, shape, template_kwargs):
        token = ends_with_token(full.text[start:end].rstrip())
        if not token and (token := starts_with_token(full.text[end:])):
            after = True
        if token:
            ends.add(token)
    return TurnRules(_longest(prompts), _longest(headers), _longest(ends), after, structural, tagged)


def _longest(texts: set[str]) -> tuple[str, ...]:
    return tuple(sorted(texts, key=lambda text: (-len(text), text)))


def _openings() -> Iterator[tuple[list[Message], Any]]:
    """Conversations after which the model has to answer."""
    answer = Message("assistant", "Zulu")
    for start in ([], [_SYSTEM]):
        yield [*start, _USER], None
        yield [*start, _USER, answer, _USER], None
        for arguments in ("", None):
            yield [*start, _USER, _call(arguments, _ARGUMENTS), _TOOL], _TOOLS
    yield [_USER], _TOOLS


def _answers(template: ChatTemplate, shape: Shape, kwargs: Mapping[str, Any]) -> Iterator[tuple[Marked, tuple[int, int]]]:
    """Plain assistant turns, the last one and earlier ones, with the renders they stand in."""
    for turns, tools in _openings():
        for after in ([], [_USER, Message("assistant", "7even")], [_USER]):
            full = _try(template, shape, [*turns, Message("assistant", "Alpha"), *after], tools=tools, kwargs=kwargs)
            if full is not None and (region := _region(full, len(turns))) is not None:
                yield full, region


def _headers(template: ChatTemplate, shape: Shape, kwargs: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    for turns, tools in _openings():
        texts = []
        for answer in _ANSWERS:
            conversation = [*turns, Message("assistant", answer), _USER, Message("assistant", "Omega")]
            full = _try(template, shape, conversation, tools=tools, kwargs=kwargs)
            if full is not None and (region := _region(full, len(turns))) is not None:
                texts.append(full.text[region[0] : region[1]])
        if len(texts) == len(_ANSWERS):
            found.add(os.path.commonprefix(texts))
    return {header for header in found if header.strip()}


def _region(marked: Marked, index: int) -> tuple[int, int] | None:
    regions = [(start, end) for message, start, end in marked.regions if message == index]
    return regions[0] if len(regions) == 1 else None


def _try(
    template: ChatTemplate,
    shape: Shape,
    turns: Sequence[Message],
    *,
    tools: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    open_turn: bool = False,
) -> Marked | None:
    messages = [shape_message(message, shape, {}) for message in turns]
    try:
        return template.render(messages, tools, kwargs, add_generation_prompt=open_turn)
    except TemplateFailure:
        return None
