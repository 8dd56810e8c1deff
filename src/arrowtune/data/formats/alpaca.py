"""Alpaca: one instruction, its input, the output; earlier rounds in `history`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arrowtune.data.formats import base
from arrowtune.data.formats.base import Parsed, bad
from arrowtune.types import Message, Origin, Record, Skip


class AlpacaFormat:
    """Rows with `instruction`, `input` (joined to it by a line break) and `output`."""

    name = "alpaca"
    columns = ("instruction", "input", "output", "history", "system")

    def matches(self, columns: frozenset[str]) -> bool:
        """Rows with `instruction` and `output`."""
        return {"instruction", "output"} <= columns

    def parse(self, record: Record, origin: Origin, columns: Mapping[str, str | None]) -> Parsed:
        """Read a row; see `base.Format.parse`."""
        instruction, given, output = (base.text(record, columns, name, origin) for name in ("instruction", "input", "output"))
        if (columns.get("output") or "output") not in record:
            raise bad(origin, (columns.get("output") or "output"), "is missing")
        if not output:
            return Skip(origin, "empty", "the output is empty")
        asked = "\n".join(part for part in (instruction, given) if part)
        if not asked:
            return Skip(origin, "empty", "instruction and input are empty")
        turns = [*_history(base.column(record, columns, "history"), (columns.get("history") or "history"), origin)]
        turns += [Message("user", asked), Message("assistant", output)]
        return base.conversation(turns, origin, base.text(record, columns, "system", origin))


def _history(value: Any, field: str, origin: Origin) -> list[Message]:
    turns: list[Message] = []
    for index, pair in enumerate(base.listing(value, field, origin) if value else []):
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise bad(origin, f"{field}[{index}]", "must be a pair of strings: what was asked and what was answered")
        turns += [Message("user", pair[0]), Message("assistant", pair[1])]
    return turns
