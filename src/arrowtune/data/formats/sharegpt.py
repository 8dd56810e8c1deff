"""ShareGPT: `conversations` of `from` / `value` turns, in all the spellings of roles that are met."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from arrowtune.data.formats import base
from arrowtune.data.formats.base import Parsed, bad, kind
from arrowtune.data.formats.messages import parse_message
from arrowtune.types import Message, Origin, Record

_ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("human", "user", "prompter", "question", "input", "instruction"), "user"),
    **dict.fromkeys(("gpt", "gpt4", "gpt-4", "assistant", "chatgpt", "bing", "bard", "claude", "gemini", "model"), "assistant"),
    **dict.fromkeys(("bot", "ai", "answer", "output", "response"), "assistant"),
    **dict.fromkeys(("tool", "observation", "tool_response", "function_response", "function", "ipython", "tool_result"), "tool"),
    **dict.fromkeys(("function_call", "tool_call", "function-call", "tool_calls"), "function_call"),
}
_NAMES = ("conversations", "conversation")


class ShareGPTFormat:
    """Rows with a list of turns whose roles are people and products."""

    name = "sharegpt"
    columns = ("conversations", "tools", "system", "chat_template_kwargs")

    def matches(self, columns: frozenset[str]) -> bool:
        """Rows with a `conversations` column."""
        return bool(columns & set(_NAMES))

    def parse(self, record: Record, origin: Origin, columns: Mapping[str, str | None]) -> Parsed:
        """Read a row; see `base.Format.parse`."""
        field = columns.get("conversations") or next((name for name in _NAMES if name in record), _NAMES[0])
        value = record.get(field)
        if value is None:
            raise bad(origin, field, "is missing" if field not in record else "is null")
        turns = [_turn(item, f"{field}[{index}]", origin) for index, item in enumerate(base.listing(value, field, origin))]
        return base.conversation(
            _without_empty(turns),
            origin,
            base.text(record, columns, "system", origin),
            base.tools(record, columns, origin),
            base.kwargs(record, columns, origin),
        )


def _turn(item: Any, field: str, origin: Origin) -> Message:
    if not isinstance(item, Mapping):
        raise bad(origin, field, f"must be an object with from and value, not {kind(item)}")
    said = item["from"] if item.get("from") is not None else item.get("role")
    if not isinstance(said, str):
        raise bad(origin, f"{field}.from", "is missing" if said is None else f"must be a name, not {kind(said)}")
    role = _ROLES.get(said.strip().lower())
    if role is None:
        raise bad(origin, f"{field}.from", f"is the unknown role {said!r}", f"known roles: {', '.join(sorted(_ROLES))}")
    value = item["value"] if item.get("value") is not None else item.get("content")
    rest = {key: entry for key, entry in item.items() if key not in ("from", "role", "value", "content")}
    if role == "function_call":
        calls = _calls(value, f"{field}.value", origin)
        return parse_message({**rest, "role": "assistant", "content": "", "tool_calls": calls}, field, origin)
    content = "" if value is None and not rest.get("tool_calls") else value
    return parse_message({**rest, "role": role, "content": content}, field, origin)


def _calls(value: Any, field: str, origin: Origin) -> list[Any]:
    """The calls of a `function_call` turn: `{"name": ..., "arguments": ...}`, or a list of those, as JSON text or plain."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise bad(origin, field, "of a function_call turn is not JSON") from None
    calls = value if isinstance(value, list) else [value]
    for call in calls:
        if not isinstance(call, Mapping) or not isinstance(call.get("function", call).get("name"), str):
            raise bad(origin, field, "of a function_call turn must be an object with name and arguments")
    return [call if "function" in call else {"type": "function", "function": call} for call in calls]


def _without_empty(turns: list[Message]) -> list[Message]:
    """Leading and trailing turns that hold nothing carry nothing; inside, they keep the order of speakers."""

    def holds(turn: Message) -> bool:
        return bool(turn.content or turn.tool_calls or turn.reasoning)

    start, end = 0, len(turns)
    while start < end and not holds(turns[start]):
        start += 1
    while end > start and not holds(turns[end - 1]):
        end -= 1
    return turns[start:end]
