"""What every format needs: the protocol, and readers of single fields that name what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from arrowtune.errors import FormatError
from arrowtune.types import Conversation, Item, Message, Origin, Record, Skip

Parsed = Item | Skip

_KINDS: Mapping[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


class Format(Protocol):
    """A shape of rows.

    Attributes:
        name: As the run file says it.
        columns: The columns it reads; a source may rename them.
    """

    @property
    def name(self) -> str: ...

    @property
    def columns(self) -> tuple[str, ...]: ...

    def matches(self, columns: frozenset[str]) -> bool:
        """Whether rows with these columns are of this shape."""
        ...

    def parse(self, record: Record, origin: Origin, columns: Mapping[str, str | None]) -> Parsed:
        """Read a row.

        Args:
            record: The row.
            origin: Its address.
            columns: Names of columns by the format's own names, where they differ.

        Returns:
            What the row holds, or a `Skip` for a row that is of the format and holds nothing to train on.

        Raises:
            FormatError: The row is not of the format; names the field and the place.
        """
        ...


def bad(origin: Origin, field: str, reason: str, hint: str = "") -> FormatError:
    """A malformed row: `FILE:LINE: FIELD REASON`."""
    return FormatError(f"{origin}: {field} {reason}", hint=hint)


_MEDIA = frozenset({"image", "images", "video", "videos", "audio", "audios", "pixel_values", "image_grid_thw"})


def refuse_media(record: Record, origin: Origin) -> None:
    """Refuse a row that comes with images or the like: its text alone is not what it teaches.

    Raises:
        FormatError: It does.
    """
    for name in sorted(_MEDIA.intersection(record)):
        value = record[name]
        if value is not None and value != "" and value != []:
            raise bad(origin, name, "holds media; only text is trained", "leave out rows with media")


def kind(value: Any) -> str:
    """The name of a value's type as JSON calls it."""
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def column(record: Record, columns: Mapping[str, str | None], name: str) -> Any:
    """The value of a column under the name that the source gives it; None where it is absent."""
    field = columns.get(name, name)
    return None if field is None else record.get(field)


def text(record: Record, columns: Mapping[str, str | None], name: str, origin: Origin) -> str | None:
    """A column that is a string, null or absent.

    Raises:
        FormatError: It is anything else.
    """
    value = column(record, columns, name)
    if value is None or isinstance(value, str):
        return value
    raise bad(origin, columns.get(name) or name, f"must be a string, not {kind(value)}")


def listing(value: Any, field: str, origin: Origin) -> list[Any]:
    """A list, or a string that holds a JSON list.

    Raises:
        FormatError: It is anything else.
    """
    if isinstance(value, str):
        value = from_json(value, field, origin)
    if isinstance(value, tuple):
        return list(value)
    if not isinstance(value, list):
        raise bad(origin, field, f"must be a list, not {kind(value)}")
    return value


def from_json(value: str, field: str, origin: Origin) -> Any:
    """The value of a string that holds JSON.

    Raises:
        FormatError: It holds something else.
    """
    try:
        return json.loads(value)
    except ValueError:
        raise bad(origin, field, "is a string that is not JSON") from None


def tools(record: Record, columns: Mapping[str, str | None], origin: Origin) -> Sequence[Any] | None:
    """The `tools` column: a list, a JSON string of one, or nothing; an empty list is nothing.

    Raises:
        FormatError: It is anything else, or an entry is not an object.
    """
    field, value = columns.get("tools") or "tools", column(record, columns, "tools")
    if value is None or value == "":
        return None
    found = listing(value, field, origin)
    for index, tool in enumerate(found):
        if not isinstance(tool, dict):
            raise bad(origin, f"{field}[{index}]", f"must be an object that describes a tool, not {kind(tool)}")
    return found or None


def kwargs(record: Record, columns: Mapping[str, str | None], origin: Origin) -> Mapping[str, Any]:
    """The `chat_template_kwargs` column: an object of template arguments, a JSON string of one, or nothing.

    Raises:
        FormatError: It is anything else.
    """
    field = columns.get("chat_template_kwargs") or "chat_template_kwargs"
    value = column(record, columns, "chat_template_kwargs")
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        value = from_json(value, field, origin)
    if not isinstance(value, dict):
        raise bad(origin, field, f"must be an object of template arguments, not {kind(value)}")
    # Readers of typed tables fill absent keys with null; a template must not see those.
    return {key: item for key, item in value.items() if item is not None}


def conversation(
    messages: Iterable[Message],
    origin: Origin,
    system: str | None = None,
    tools: Sequence[Any] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Conversation | Skip:
    """Put a conversation together; a system column is not doubled where the messages begin with a system turn."""
    turns = tuple(messages)
    if system and not (turns and turns[0].role == "system"):
        turns = (Message("system", system), *turns)
    answers = [turn for turn in turns if turn.role == "assistant"]
    if not turns:
        return Skip(origin, "empty", "no messages")
    if not answers:
        return Skip(origin, "no_assistant_turn")
    if not any(turn.content or turn.tool_calls or turn.reasoning for turn in answers):
        return Skip(origin, "empty", "every assistant turn is empty")
    return Conversation(turns, origin, tools, template_kwargs or {})
