"""Formats: how a raw row becomes a conversation. Adding one is one file and one line of `FORMATS`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from arrowtune.data.formats.alpaca import AlpacaFormat
from arrowtune.data.formats.base import Format, Parsed
from arrowtune.data.formats.messages import MessagesFormat
from arrowtune.data.formats.pretokenized import PretokenizedFormat
from arrowtune.data.formats.prompt_completion import PromptCompletionFormat
from arrowtune.data.formats.sharegpt import ShareGPTFormat
from arrowtune.data.formats.text import TextFormat
from arrowtune.errors import FormatError

FORMATS: Mapping[str, Format] = {
    form.name: form
    for form in (MessagesFormat(), ShareGPTFormat(), PromptCompletionFormat(), AlpacaFormat(), PretokenizedFormat(), TextFormat())
}
"""By name, in the order in which `detect_format` asks them."""

PRETOKENIZED = PretokenizedFormat.name
"""The format whose rows are not rendered."""

__all__ = ["FORMATS", "PRETOKENIZED", "Format", "Parsed", "detect_format", "get_format"]


def get_format(name: str) -> Format:
    """The format of that name.

    Raises:
        FormatError: There is none.
    """
    if name not in FORMATS:
        raise FormatError(f"there is no format {name!r}", hint=f"known formats: {', '.join(FORMATS)}")
    return FORMATS[name]


def detect_format(columns: Iterable[str], names: Mapping[str, str | None], origin: object) -> str:
    """The format of rows with these columns.

    Args:
        columns: The columns of the first rows.
        names: The source's names of columns by the format's own.
        origin: The source, for the error.

    Raises:
        FormatError: No format reads such rows; lists the columns and the formats.
    """
    own = {theirs: ours for ours, theirs in names.items() if theirs is not None}
    found = sorted(columns)
    seen = frozenset(own.get(name, name) for name in found)
    for form in FORMATS.values():
        if form.matches(seen):
            return form.name
    shapes = "; ".join(f"{form.name} reads {', '.join(form.columns)}" for form in FORMATS.values())
    raise FormatError(
        f"the rows of {origin} have the columns {', '.join(found) or '(none)'}, which no format reads",
        hint=f"{shapes}; name differing columns with `columns:` of the source",
    )
