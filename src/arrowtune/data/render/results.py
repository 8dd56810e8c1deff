"""Where a template wrote the results of tools, if it wrote them into the turns that called the tools.

Such templates look ahead: while their loop holds the call, a second loop inside of it goes through the messages that
follow. A round of that loop is a stretch of the render. The row is rendered once more with private marks around the
contents of its results; the stretches that hold the marks are the results, with all that the template puts around them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from arrowtune.data.render.marks import free_points
from arrowtune.data.render.spans import Stretch, Unproved
from arrowtune.data.render.template import Marked
from arrowtune.types import Message


def result_stretches(marked: Marked, turns: Sequence[Message], render: Callable[[Sequence[Message]], Marked]) -> list[Stretch]:
    """The stretches of a render that hold results of tools, in order.

    Args:
        marked: The render.
        turns: What was rendered.
        render: Renders the like.

    Raises:
        Unproved: A result stands elsewhere, or in several places.
    """
    first, last = map(chr, free_points(marked.text, 2))
    noted = render([_noted(turn, first, last) for turn in turns])
    if noted.text.replace(first, "").replace(last, "") != marked.text or len(noted.stretches) != len(marked.stretches):
        raise Unproved("spans_unproved", "the template renders the conversation otherwise when results of tools are marked")
    found: list[Stretch] = []
    results = [match.span() for match in re.finditer(f"{first}[^{first}{last}]*{last}", noted.text)]
    if len(results) * 2 != len(re.findall(f"[{first}{last}]", noted.text)) or len(results) != sum(map(_is_result, turns)):
        raise Unproved("spans_unproved", "the template does not write every result of a tool in one place")
    for start, end in results:
        around = [k for k, (begin, close) in enumerate(noted.stretches) if begin <= start and end <= close]
        if len(around) != 1:
            raise Unproved("spans_unproved", "it is not plain where the template writes the results of tools")
        found.append(marked.stretches[around[0]])
    return sorted(set(found))


def _is_result(turn: Message) -> bool:
    return turn.role == "tool"


def _noted(turn: Message, first: str, last: str) -> Message:
    if not _is_result(turn):
        return turn
    if not isinstance(turn.content, str):
        raise Unproved("spans_unproved", "a result of a tool is no text, and stands in the turn that called the tool")
    return replace(turn, content=_around(turn.content, first, last))


def _around(text: Any, first: str, last: str) -> str:
    """The text with marks around it, inside of its white space, which templates may strip."""
    body = text.strip()
    start = text.find(body)
    return f"{text[:start]}{first}{body}{last}{text[start + len(body) :]}"
