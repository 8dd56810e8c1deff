"""Documents: one text a row, all of it trained."""

from __future__ import annotations

from collections.abc import Mapping

from arrowtune.data.formats.base import Parsed, bad, kind
from arrowtune.types import Document, Origin, Record, Skip


class TextFormat:
    """Rows with a `text`, which no other format reads."""

    name = "text"
    columns = ("text",)

    def matches(self, columns: frozenset[str]) -> bool:
        """Rows with a `text` column; whatever else documents come with is not read."""
        return "text" in columns

    def parse(self, record: Record, origin: Origin, columns: Mapping[str, str | None]) -> Parsed:
        """Read a row; see `base.Format.parse`."""
        field = columns.get("text") or "text"
        value = record.get(field)
        if value is None:
            raise bad(origin, field, "is null" if field in record else "is missing")
        if not isinstance(value, str):
            raise bad(origin, field, f"must be a string, not {kind(value)}")
        return Document(value, origin) if value else Skip(origin, "empty", "the document is empty")
