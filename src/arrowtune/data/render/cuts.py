"""Long texts in parts.

A token engine needs many times a text's size in memory, and of a row far beyond `max_length` only the beginning is wanted.
A cut must not change a token. Byte-level tokenizers first take a text apart by a regular expression, from left to right,
and no token crosses from one part into the next; so a text may be cut wherever a part ends for certain, which is where
letters end, be it at a space, a digit or a mark. Every cut is held against the reference engine: what surrounds it has to
give the same tokens whole and in two. Where nothing is certain, a text stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from arrowtune.data.render.engine import Engine
from arrowtune.data.render.spec import RenderSpec

LONG = 1 << 20
"""Characters from which on a text is worth cutting."""

_CHARACTERS_PER_TOKEN = 8
_BACK, _AROUND, _TRIES = 1 << 14, 256, 8
_WORD_ENDS = re.compile(r"[A-Za-z\u3041-\u30fe\u4e00-\u9fa5](?=[0-9 \n.,:;!?+/\u3001\u3002\uff01\uff0c\uff1f])")


def head(text: str, engine: Engine, spec: RenderSpec) -> str:
    """A text, or so much of it that its tokens within `max_length` are the same, and that there are more than those.

    Args:
        text: A row.
        engine: The token engine.
        spec: Says how long examples may be, and that what is beyond is cut off; else the text stays whole.

    Raises:
        StillLoading: The engine is loading, and is needed.
    """
    size = max(LONG, _CHARACTERS_PER_TOKEN * spec.max_length)
    if spec.overlong != "truncate":
        return text
    while size < len(text):
        end = _cut_before(text, engine, size, 0)
        if end is None:
            return text
        if len(engine.encode([text[:end]]).ids) > spec.max_length:
            return text[:end]
        size *= 4
    return text


def stretches(text: str, engine: Engine) -> Iterator[str]:
    """A text in parts of at most `LONG` characters where it can be cut, whose tokens are those of the text."""
    start = 0
    while len(text) - start > LONG:
        end = _cut_before(text, engine, start + LONG, start)
        if end is None:
            break
        yield text[start:end]
        start = end
    yield text[start:]


def _cut_before(text: str, engine: Engine, place: int, after: int) -> int | None:
    """The last certain place before `place` and well after `after`; None where there is none near."""
    candidates = [match.end() for match in _WORD_ENDS.finditer(text, max(after + _AROUND, place - _BACK), place)]
    for end in candidates[-_TRIES:][::-1]:
        if engine.falls_apart(text[end - _AROUND : end], text[end : end + _AROUND]):
            return end
    return None
