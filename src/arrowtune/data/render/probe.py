"""What a template takes and writes, found out by rendering small conversations.

Everything here runs once per template and set of arguments. The questions: how does a null content have to be written,
what form of tool arguments does it want, with what text does inference open an assistant turn, what token ends it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from arrowtune.data.tokenizer import AddedToken
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
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "A city."}},
                "required": ["city"],
            },
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
        prompts: What inference has written when the model starts to answer, longest first.
        headers: What every earlier assistant turn begins with, longest first.
        ends: The tokens that may end a turn.
        bare: The roles after which inference writes nothing and the model opens its turn itself.
        after: Some ends follow the text of the turn instead of closing it.
        swallows: The template writes the results of tools into the turn that called them.
        structural: Marks show where the turns are; else only prefixes can.
        tagged: The template has generation tags, which are taken as they are.
    """

    prompts: tuple[str, ...]
    headers: tuple[str, ...]
    ends: tuple[str, ...]
    bare: frozenset[str]
    after: bool
    swallows: bool
    structural: bool
    tagged: bool


def find_shape(template: ChatTemplate) -> Shape:
    """How messages must be written for this template."""
    base = replace(_call_shape(template), parts=_parts_shape(template))
    policies: tuple[NullPolicy, ...] = ("drop", "keep", "empty")
    for nulls in policies:
        shape = replace(base, nulls=nulls)
        turns = [_USER, _call(None, _ARGUMENTS), _TOOL]
        marked = _try(template, shape, turns) or _try(template, shape, turns[:2]) or _try(template, shape, turns, tools=_TOOLS)
        if marked is not None and "None" not in marked.text and "null" not in marked.text:
            break
    return replace(shape, reasoning=_writes_reasoning(template, shape))


def _parts_shape(template: ChatTemplate) -> PartsPolicy:
    turns = [_USER, Message("assistant", "Alpha")]

    def works(policy: PartsPolicy) -> bool:
        marked = _try(template, Shape(parts=policy), turns)
        if marked is None or "'text'" in marked.text or '"text"' in marked.text:
            return False
        return "Quercus?" in marked.text and "Alpha" in marked.text

    if not works("wrap"):
        return "join"
    return "keep" if works("keep") else "wrap"


def _writes_reasoning(template: ChatTemplate, shape: Shape) -> bool:
    marked = _try(template, shape, [_USER, Message("assistant", "Alpha", reasoning="Omicron")])
    return marked is None or "Omicron" in marked.text


def _call_shape(template: ChatTemplate) -> Shape:
    policies: tuple[NullPolicy, ...] = ("drop", "keep")

    def text(arguments: Any) -> str | None:
        for content, nulls, rest in itertools.product(("", None), policies, ([], [_TOOL])):
            marked = _try(template, Shape(nulls=nulls), [_USER, _call(content, arguments), *rest], tools=_TOOLS)
            if marked is not None and "Rome" in marked.text:
                return marked.text
        return None

    as_object, as_string = text(_ARGUMENTS), text('{"city": "Rome"}')
    if as_object is None or "{'city'" in as_object:
        return Shape(arguments="string" if as_string is not None else "as_written", calls=as_string is not None)
    return Shape(arguments="as_written" if as_object == as_string else "object")


def find_rules(
    template: ChatTemplate,
    shape: Shape,
    template_kwargs: Mapping[str, Any],
    added: Sequence[AddedToken],
) -> TurnRules:
    """Probe how assistant turns begin and end.

    Args:
        template: The template.
        shape: How it takes messages.
        template_kwargs: Arguments of the rows the rules are for.
        added: The added vocabulary, longest texts first: what may end a turn.
    """
    prompts: set[str] = set()
    bare: set[str] = set()
    structural, tagged = False, False
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
        start = region[0]
        if prompt.text[:start] == full.text[:start]:
            opening = prompt.text[start:]
            prompts.add(opening)
            if not opening:
                bare.add(turns[-1].role)
    headers = _headers(template, shape, template_kwargs)
    ends, after = _ends(template, shape, template_kwargs, added)
    call_ends, swallows = _call_ends(template, shape, template_kwargs, added)
    return TurnRules(
        prompts=_longest(prompts - {""}),
        headers=_longest(headers),
        ends=_longest(ends | call_ends),
        bare=frozenset(bare),
        after=after,
        swallows=swallows,
        structural=structural,
        tagged=tagged,
    )


def _ends(template: ChatTemplate, shape: Shape, kwargs: Mapping[str, Any], added: Sequence[AddedToken]) -> tuple[set[str], bool]:
    """The tokens that end turns, and whether some follow the turn."""
    ends: set[str] = set()
    after = False
    for full, (start, end) in _answers(template, shape, kwargs):
        closed = full.text[start:end].rstrip()
        if token := next((token.text for token in added if closed.endswith(token.text)), None):
            ends.add(token)
        elif token := next((token.text for token in added if full.text.startswith(token.text, end)), None):
            ends.add(token)
            after = True
    return ends, after


def _call_ends(
    template: ChatTemplate, shape: Shape, kwargs: Mapping[str, Any], added: Sequence[AddedToken]
) -> tuple[set[str], bool]:
    """The special tokens that end calls of tools, and whether the results of the tools are written before them."""
    ends: set[str] = set()
    swallows = False
    for content in ("", None):
        full = _try(template, shape, [_USER, _call(content, _ARGUMENTS), _TOOL], tools=_TOOLS, kwargs=kwargs)
        for index, start, end in full.regions if full is not None else ():
            written = full.text[start:end].rstrip() if full is not None and index == 1 else ""
            if str(_TOOL.content) in written:
                swallows = True
            elif written:
                ends.update(token.text for token in added if token.special and written.endswith(token.text))
    return ends, swallows


def opening_text(template: ChatTemplate, shape: Shape, rules: TurnRules) -> str:
    """Text that holds every token with which the template opens and closes turns."""
    asked = _try(template, shape, [_SYSTEM, _USER]) or _try(template, shape, [_USER])
    openings = [*rules.prompts, *rules.headers]
    return "\0".join([asked.text if asked else "", _common_prefix(openings) if openings else "", *rules.ends])


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
            if full is None:
                continue
            region = _region(full, len(turns))
            if not full.regions:  # nothing is marked: the turn is what prefixes leave
                before = _try(template, shape, turns, tools=tools, kwargs=kwargs, open_turn=True)
                upto = _try(template, shape, [*turns, Message("assistant", "Alpha")], tools=tools, kwargs=kwargs)
                if before is not None and upto is not None and upto.text.startswith(before.text):
                    region = len(before.text), len(upto.text)
            if region is not None:
                yield full, region


def _headers(template: ChatTemplate, shape: Shape, kwargs: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    # Conversations that begin with an answer too: there the header may follow the beginning of the text.
    for turns, tools in [([], None), ([_SYSTEM], None), *_openings()]:
        texts = []
        for answer in _ANSWERS:
            conversation = [*turns, Message("assistant", answer), _USER, Message("assistant", "Omega")]
            full = _try(template, shape, conversation, tools=tools, kwargs=kwargs)
            if full is not None and (region := _region(full, len(turns))) is not None:
                texts.append(full.text[region[0] : region[1]])
        if len(texts) == len(_ANSWERS):
            found.add(_common_prefix(texts))
    return {header for header in found if header.strip()}


def _common_prefix(texts: Sequence[str]) -> str:
    length = next((k for k, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1), min(map(len, texts)))
    return texts[0][:length]


def _region(marked: Marked, index: int) -> tuple[int, int] | None:
    """The region of an answer; None where there is no single one, or where it holds what others said."""
    regions = [(start, end) for message, start, end in marked.regions if message == index]
    if len(regions) != 1 or any(str(turn.content) in marked.text[slice(*regions[0])] for turn in (_USER, _SYSTEM, _TOOL)):
        return None
    return regions[0]


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
