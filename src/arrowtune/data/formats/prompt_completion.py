"""Prompt and completion: two strings encoded as at inference, or two lists of messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from arrowtune.data.formats import base
from arrowtune.data.formats.base import Parsed, bad, kind
from arrowtune.data.formats.messages import parse_message
from arrowtune.types import Completion, Message, Origin, Record, Skip


class PromptCompletionFormat:
    """Rows with `prompt` and `completion`. In lists of messages, only the completion's assistant turns are trained."""

    name = "prompt_completion"
    columns = ("prompt", "completion", "tools", "system", "chat_template_kwargs")

    def matches(self, columns: frozenset[str]) -> bool:
        """Rows with `prompt` and `completion`."""
        return {"prompt", "completion"} <= columns

    def parse(self, record: Record, origin: Origin, columns: Mapping[str, str | None]) -> Parsed:
        """Read a row; see `base.Format.parse`."""
        prompt, completion = (_side(record, columns, name, origin) for name in ("prompt", "completion"))
        if isinstance(prompt, str) and isinstance(completion, str):
            return Completion(prompt, completion, origin) if completion else Skip(origin, "empty", "the completion is empty")
        before = _messages(prompt, "user", (columns.get("prompt") or "prompt"), origin)
        after = _messages(completion, "assistant", (columns.get("completion") or "completion"), origin)
        return base.conversation(
            [*(replace(turn, weight=0.0) for turn in before), *after],
            origin,
            base.text(record, columns, "system", origin),
            base.tools(record, columns, origin),
            base.kwargs(record, columns, origin),
        )


def _side(record: Record, columns: Mapping[str, str | None], name: str, origin: Origin) -> Any:
    field = columns.get(name) or name
    value = record.get(field)
    if value is None:
        raise bad(origin, field, "is null" if field in record else "is missing")
    if not isinstance(value, str | list | tuple | dict):
        raise bad(origin, field, f"must be a string or a list of messages, not {kind(value)}")
    return value


def _messages(value: Any, role: str, field: str, origin: Origin) -> list[Message]:
    if isinstance(value, str):
        return [Message(role, value)]
    items = [value] if isinstance(value, dict) else value
    return [parse_message(item, f"{field}[{index}]", origin) for index, item in enumerate(items)]
