"""One rendered row on a terminal: trained tokens in colour, or between marks where there is no colour."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.text import Text

from arrowtune.types import Origin, Skip
from arrowtune.view.text import count, visible

OPEN, CLOSE = "⟦", "⟧"
TRAINED, CONTEXT, HEAD, SKIPPED = "bold green", "dim", "bold cyan", "yellow"

_LONG = 1600
_KEPT = 600


@dataclass(frozen=True, slots=True)
class PreviewedRow:
    """A row with its tokens.

    Attributes:
        source: The name of its source.
        origin: Its address.
        runs: The text in stretches of one loss weight each.
        tokens, trained_tokens: Of the example.
        cut: Characters of the text that `max_length` leaves out.
    """

    source: str
    origin: Origin
    runs: tuple[tuple[str, float], ...]
    tokens: int
    trained_tokens: int
    cut: int = 0


def runs_of(text: str, spans: Iterable[tuple[int, int, float]]) -> tuple[tuple[str, float], ...]:
    """Cut a text at its trained spans.

    Args:
        text: The render.
        spans: (start, end, weight) in characters, in order; what lies between them is context.
    """
    runs: list[tuple[str, float]] = []
    done = 0
    for start, end, weight in spans:
        start, end = max(start, done), min(end, len(text))
        if start >= end:
            continue
        runs += [(text[done:start], 0.0), (text[start:end], float(weight))]
        done = end
    runs.append((text[done:], 0.0))
    return tuple((part, weight) for part, weight in runs if part)


def row_text(row: PreviewedRow, *, colour: bool, full: bool = False) -> Text:
    """A row for the terminal.

    Args:
        row: What to show.
        colour: Mark trained tokens by colour; otherwise by `⟦` and `⟧`.
        full: Show long stretches of context whole.
    """
    numbers = f"{count(row.tokens)} tokens, {count(row.trained_tokens)} trained"
    parts = [Text(f"{visible(str(row.origin))}  ({visible(row.source)}: {numbers})\n", style=HEAD if colour else "")]
    parts += [_run(text, weight, colour, full) for text, weight in row.runs]
    if row.cut:
        parts.append(Text(f"\n… {count(row.cut)} more characters are beyond data.max_length …", style=SKIPPED if colour else ""))
    whole = Text.assemble(*parts)
    return whole if whole.plain.endswith("\n") else whole + Text("\n")


def _run(text: str, weight: float, colour: bool, full: bool) -> Text:
    if weight == 0:
        shown = _show(text if full else _shorten(text))
        return Text(shown, style=CONTEXT if colour else "")
    # The weight is worth a word only where it is not the usual one.
    shown = _show(text).replace("\n", "↵\n")
    label = "" if weight == 1 else f"{weight:g}*"
    return Text(f"{label}{shown}", style=TRAINED) if colour else Text(f"{OPEN}{label}{shown}{CLOSE}")


def _show(text: str) -> str:
    """Spaces at the end of a line become dots; whatever hides is spelled out."""
    shown = visible(text, reserved=f"{OPEN}{CLOSE}↵")
    return re.sub(r" +(?=\n|$)", lambda spaces: "·" * len(spaces.group()), shown) if " " in shown else shown


def _shorten(text: str) -> str:
    if len(text) <= _LONG:
        return text
    return f"{text[:_KEPT]}\n… {count(len(text) - 2 * _KEPT)} more characters of context …\n{text[-_KEPT:]}"


def skip_text(skips: Iterable[Skip], reasons: Mapping[str, str], *, colour: bool) -> Text:
    """One line per skipped row: where, why, and the detail."""
    lines = [f"{visible(str(skip.origin))}  {skip.reason}: {_why(skip, reasons)}".rstrip(": ") for skip in skips]
    return Text("".join(f"{line}\n" for line in lines), style=SKIPPED if colour else "")


def _why(skip: Skip, reasons: Mapping[str, str]) -> str:
    parts = (reasons.get(skip.reason, ""), skip.detail)
    return visible("; ".join(part for part in parts if part).replace("\n", " "))
