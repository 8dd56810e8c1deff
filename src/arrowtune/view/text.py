"""Plain text for people: aligned tables, grouped numbers, and characters that would otherwise not be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Columns two spaces apart; the first `left` of them are text, the others numbers and aligned to the right."""
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(_line(line, widths, left) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    pairs = list(zip(cells, widths, strict=True))
    words = [cell.ljust(width) for cell, width in pairs[:left]]
    return "  ".join(words + [cell.rjust(width) for cell, width in pairs[left:]]).rstrip()


def fields(pairs: Sequence[tuple[str, str]], *, indent: str = "") -> str:
    """One `key  value` per line, the values aligned."""
    width = max((len(key) for key, _ in pairs), default=0)
    return "\n".join(f"{indent}{key.ljust(width)}  {value}".rstrip() for key, value in pairs)


def count(number: float) -> str:
    """A whole number with its thousands apart: 1,234,567."""
    return f"{round(number):,}"


def many(number: int, noun: str) -> str:
    """A number with its noun: `1 row`, `2 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(share: float) -> str:
    """A share of one: 97.3 %."""
    return f"{100 * share:.1f} %"


def loss(value: float | None) -> str:
    """A loss with four decimals; a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"


def duration(seconds: float) -> str:
    """A time span: 0.4 s, 48 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def visible(text: str, *, reserved: str = "") -> str:
    """The text with every character that a terminal hides or obeys spelled out; tabs and line breaks stay.

    Args:
        text: Anything, hostile or not.
        reserved: Characters that mean something to the caller and are spelled out too.
    """
    if text.isascii() and text.isprintable():
        return text
    before = ("", *text)
    return "".join(_visible(char, last, reserved) for last, char in zip(before, text, strict=False))


def _visible(char: str, last: str, reserved: str) -> str:
    if char in "\n\t" or (char.isprintable() and char not in reserved):
        return char
    if char in "\u200c\u200d" and not last.isascii():
        return char  # Joiners belong to many scripts and emoji; next to ASCII they hide.
    code = ord(char)
    # Unicode has pictures for the control characters: ␛ for escape.
    return chr(0x2400 + code) if code < 0x20 else f"<U+{code:04X}>"
