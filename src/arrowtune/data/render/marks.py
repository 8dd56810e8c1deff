"""Characters that a text does not hold, to mark places in it."""

from __future__ import annotations

from itertools import islice

from arrowtune.data.render.spans import Unproved

_PRIVATE = range(0xE000, 0xF8FF)


def free_points(text: str, count: int) -> list[int]:
    """Private code points that a text does not hold.

    Raises:
        Unproved: It holds nearly all of them.
    """
    free = list(islice((point for point in _PRIVATE if chr(point) not in text), count))
    if len(free) < count:
        raise Unproved("control_text_unproved", "the text uses up the private characters")
    return free
