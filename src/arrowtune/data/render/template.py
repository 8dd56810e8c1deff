"""One chat template, compiled: a conversation goes in, text and the places of its turns come out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import jinja2

from arrowtune.data.render.environment import ENTER, GENERATE, GENERATED, INNER, LEAVE, OUTER, compile_template
from arrowtune.errors import RenderError
from arrowtune.types import Message

NullPolicy = Literal["drop", "keep", "empty"]
ArgumentsPolicy = Literal["as_written", "object", "string"]
PartsPolicy = Literal["join", "keep", "wrap"]
Spans = list[tuple[int, int]]


class TemplateFailure(Exception):
    """The template refused or failed on this conversation; the message is one clause, without the row's text."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How messages are handed to a template, found by probing it (see `probe`).

    Attributes:
        nulls: What a null content becomes: left out (as transformers does), kept, or the empty string.
        arguments: Whether the arguments of tool calls go as written, parsed from JSON strings, or dumped to JSON strings.
        parts: What a list of text parts becomes: joined to a string, kept, or kept while strings are wrapped as one part.
        calls: Whether the template writes calls of tools.
        reasoning: Whether the template writes the reasoning of the last answer, or that before a call of a tool.
    """

    nulls: NullPolicy = "drop"
    arguments: ArgumentsPolicy = "as_written"
    parts: PartsPolicy = "join"
    calls: bool = True
    reasoning: bool = True


@dataclass(frozen=True, slots=True)
class Marked:
    """A rendered conversation.

    Attributes:
        text: The render.
        regions: (message, start, end): the text that the template wrote while its loop held that message; in characters.
        generations: What the template itself marked with generation tags, in characters.
        stretches: What loops inside of its loop wrote, round by round, in characters.
    """

    text: str
    regions: list[tuple[int, int, int]]
    generations: Spans
    stretches: Spans


class ChatTemplate:
    """A compiled template with its constant arguments. Not for concurrent use: the marks belong to the render in progress.

    Args:
        source: The Jinja text.
        special_tokens: Names such as `bos_token`, as transformers hands them to templates.
        template_kwargs: Arguments of every render; they come before the special tokens.
        date: The day that templates which ask for it are told.

    Raises:
        RenderError: The template is not valid Jinja.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], template_kwargs: Mapping[str, Any], date: str | None
    ) -> None:
        self._constants = {**special_tokens, **template_kwargs}
        self._pieces: list[str] = []
        self._turns: list[tuple[int, int]] = []
        self._tags: list[int] = []
        self._rounds: list[int] = []
        self._ids: dict[int, int] = {}
        self._template = compile_template(source, date, self._marks())
        self.source = source
        self.date = date

    def _marks(self) -> dict[str, Callable[..., Any]]:
        # The lists live as long as the template, so that a mark, of which there are many, is one call.
        pieces, turn, index = self._pieces, self._turns.append, self._ids.get

        # Passing the context keeps the compiler from evaluating a mark at compile time.
        @jinja2.pass_context
        def enter(context: Any, value: Any) -> None:
            turn((len(pieces), index(id(value), -1)))

        @jinja2.pass_context
        def leave(context: Any, value: Any) -> None:
            turn((len(pieces), -1))

        def place_in(places: list[int]) -> Callable[..., None]:
            return jinja2.pass_context(lambda context, value: places.append(len(pieces)))

        tag, loop = place_in(self._tags), place_in(self._rounds)
        return {ENTER: enter, LEAVE: leave, GENERATE: tag, GENERATED: tag, INNER: loop, OUTER: loop}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = False,
    ) -> Marked:
        """Render shaped messages.

        Raises:
            TemplateFailure: The template raised.
            RenderError: The template reads the clock and no date is set.
        """
        for noted in (self._pieces, self._turns, self._tags, self._rounds, self._ids):
            noted.clear()
        self._ids.update((id(message), index) for index, message in enumerate(messages))
        variables = {
            **self._constants,
            **(template_kwargs or {}),
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        append = self._pieces.append
        try:
            for piece in self._template.root_render_func(self._template.new_context(variables)):
                append(piece)
        except RenderError:
            raise
        except jinja2.exceptions.TemplateError as error:
            raise TemplateFailure(str(error.message or type(error).__name__)[:200]) from None
        except Exception as error:  # noqa: BLE001 - templates run arbitrary expressions on the row's values
            raise TemplateFailure(f"{type(error).__name__} in the template: {error}"[:200]) from None
        return self._marked()

    def check_marks(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Render messages without marks too.

        Raises:
            TemplateFailure: The template raised, or the marks change what it writes.
        """
        plain = compile_template(self.source, self.date, None)
        text = self.render(messages).text
        if plain.render(**self._constants, messages=messages, tools=None, documents=None, add_generation_prompt=False) != text:
            raise TemplateFailure("it writes other text when its loops are watched")

    def _marked(self) -> Marked:
        text = "".join(self._pieces)
        at = [0, *accumulate(map(len, self._pieces))]
        self._pieces.clear()  # A row may be large.
        turns = self._turns
        regions = [
            (index, at[piece], at[turns[k + 1][0]] if k + 1 < len(turns) else len(text))
            for k, (piece, index) in enumerate(turns)
            if index >= 0 and (k + 1 == len(turns) or turns[k + 1][0] > piece)
        ]

        def pairs(places: list[int]) -> Spans:
            return [(at[start], at[end]) for start, end in zip(places[::2], places[1::2], strict=True)]

        return Marked(text, regions, pairs(self._tags), pairs(self._rounds))


def shape_message(message: Message, shape: Shape, counts: dict[str, int]) -> dict[str, Any]:
    """What a template sees of one turn: null fields left out and reasoning under its usual names, as transformers does.

    Args:
        message: The turn. Its values are handed on, never changed.
        shape: What the template takes.
        counts: Gains `invalid_tool_arguments` for arguments that are a string and not a JSON object.
    """
    out: dict[str, Any] = {"role": message.role}
    content = message.content
    if content is not None:
        if isinstance(content, str):
            out["content"] = [{"type": "text", "text": content}] if shape.parts == "wrap" else content
        else:
            out["content"] = join_parts(content) if shape.parts == "join" else content
    elif shape.nulls == "keep":
        out["content"] = None
    elif shape.nulls == "empty":
        out["content"] = ""
    if message.reasoning is not None:
        out = {"thinking": message.reasoning, **out, "reasoning_content": message.reasoning}
    if message.tool_calls:
        as_written = shape.arguments == "as_written"
        calls = message.tool_calls
        out["tool_calls"] = calls if as_written else [_shape_call(call, shape.arguments, counts) for call in calls]
    if message.extra:
        out.update((key, value) for key, value in message.extra.items() if value is not None and key not in out)
    return out


def join_parts(parts: Sequence[Mapping[str, Any]]) -> str:
    """The text of a list of text parts."""
    return "".join(str(part.get("text") or "") for part in parts)


def _shape_call(call: Any, policy: ArgumentsPolicy, counts: dict[str, int]) -> Any:
    if not isinstance(call, Mapping):
        return call
    function = call.get("function")
    if isinstance(function, Mapping):
        return {**call, "function": _shape_arguments(function, policy, counts)}
    return _shape_arguments(call, policy, counts)


def _shape_arguments(function: Mapping[str, Any], policy: ArgumentsPolicy, counts: dict[str, int]) -> Mapping[str, Any]:
    arguments = function.get("arguments")
    if policy == "string" and "arguments" in function and not isinstance(arguments, str):
        return {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}
    if policy == "object" and isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict):
            return {**function, "arguments": parsed}
        counts["invalid_tool_arguments"] = counts.get("invalid_tool_arguments", 0) + 1
    return function
