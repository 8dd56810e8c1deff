"""One rendered row on a terminal: trained tokens in colour, or between marks where there is no colour."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

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
        tokens: Bytes and loss weight of every token that an example keeps.
        skip: Why the row is not used, or None.
    """

    source: str
    origin: Origin
    tokens: tuple[tuple[bytes, float], ...] = ()
    skip: Skip | None = None

    @property
    def trained_tokens(self) -> int:
        """Tokens with weight."""
        return sum(weight > 0 for _, weight in self.tokens)

    def runs(self) -> Iterator[tuple[str, float]]:
        """Neighbouring tokens of one weight, put together and decoded: a character may be several tokens."""
        for weight, tokens in groupby(self.tokens, key=lambda token: token[1]):
            yield b"".join(part for part, _ in tokens).decode("utf-8", "replace"), weight


def row_text(row: PreviewedRow, *, colour: bool, full: bool = False) -> Text:
    """A row for the terminal.

    Args:
        row: What to show.
        colour: Mark trained tokens by colour; otherwise by `⟦` and `⟧`.
        full: Show long stretches of context whole.
    """
    numbers = f"{count(len(row.tokens))} tokens, {count(row.trained_tokens)} trained"
    parts = [Text(f"{visible(str(row.origin))}  ({visible(row.source)}: {numbers})\n", style=HEAD if colour else "")]
    parts += [_run(text, weight, colour, full) for text, weight in row.runs()]
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


def skip_text(skips: Iterable[Skip], explain: dict[str, str], *, colour: bool) -> Text:
    """One line per skipped row: where, why, and the detail."""
    lines = [f"{visible(str(skip.origin))}  {skip.reason}: {_why(skip, explain)}\n" for skip in skips]
    return Text("".join(lines), style=SKIPPED if colour else "")


def _why(skip: Skip, explain: dict[str, str]) -> str:
    why = explain.get(skip.reason, "")
    return visible("; ".join(part for part in (why, skip.detail) if part).replace("\n", " "))
