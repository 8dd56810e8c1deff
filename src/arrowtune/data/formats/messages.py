"""The chat format of the OpenAI interface: `messages` with `role` and `content`, and beside them `tools`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arrowtune.data.formats import base
from arrowtune.data.formats.base import Parsed, bad, kind
from arrowtune.types import Message, Origin, Record

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the thinking before an answer, the first of them that is set goes first."""
_SWITCHES = ("train", "weight", "loss_mask")
_OWN = frozenset({"role", "content", "tool_calls", *_SWITCHES})
_MISSPELT = frozenset({"trainable", "training", "train_on", "is_trained", "mask", "loss", "loss_weight", "no_loss", "masked"})
_MEDIA = frozenset({"image", "image_url", "video", "audio", "input_audio", "input_image", "video_url"})


class MessagesFormat:
    """Rows with a list of messages, also under the name `conversation(s)`, in `role` / `content` form."""

    name = "messages"
    columns = ("messages", "tools", "system", "chat_template_kwargs")

    def matches(self, columns: frozenset[str]) -> bool:
        """Rows with a `messages` column."""
        return "messages" in columns

    def parse(self, record: Record, origin: Origin, columns: Mapping[str, str | None]) -> Parsed:
        """Read a row; see `base.Format.parse`."""
        field = columns.get("messages") or "messages"
        value = record.get(field)
        if value is None:
            raise bad(origin, field, "is missing" if field not in record else "is null")
        items = base.listing(value, field, origin)
        return base.conversation(
            [parse_message(item, f"{field}[{index}]", origin) for index, item in enumerate(items)],
            origin,
            base.text(record, columns, "system", origin),
            base.tools(record, columns, origin),
            base.kwargs(record, columns, origin),
        )


def parse_message(item: Any, field: str, origin: Origin) -> Message:
    """One message in `role` / `content` form.

    Raises:
        FormatError: It is not of that form.
    """
    if type(item) is dict and len(item) == 2:  # Most turns of most data: nothing is there that could be wrong.
        role, content = item.get("role"), item.get("content")
        if type(role) is str and type(content) is str and role:
            return Message(role, content)
    if not isinstance(item, Mapping):
        raise bad(origin, field, f"must be an object with role and content, not {kind(item)}")
    role = item.get("role")
    if not isinstance(role, str) or not role:
        hint = "for from / value turns name format: sharegpt and columns: {conversations: messages}" if "from" in item else ""
        raise bad(origin, f"{field}.role", "is missing" if role is None else f"must be a name, not {kind(role)}", hint)
    reasoning, used = _reasoning(item, field, origin)
    calls = _tool_calls(item.get("tool_calls"), f"{field}.tool_calls", origin)
    extra = {key: value for key, value in item.items() if key not in _OWN and key != used}
    if misspelt := _MISSPELT & extra.keys():
        raise bad(origin, f"{field}.{min(misspelt)}", "is not a known switch", "use train: false, weight: 0.5 or loss_mask: 0")
    content = _content(item.get("content"), f"{field}.content", origin)
    if content is None and role == "assistant" and not calls and reasoning is None:
        content = ""
    return Message(role, content, calls, reasoning, extra, _weight(item, role, field, origin))


def _content(value: Any, field: str, origin: Origin) -> str | Sequence[Mapping[str, Any]] | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list | tuple):
        raise bad(origin, field, f"must be text, a list of parts or null, not {kind(value)}")
    parts: list[Mapping[str, Any]] = []
    for index, part in enumerate(value):
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, Mapping):
            raise bad(origin, f"{field}[{index}]", f"must be a part such as {{type: text, text: ...}}, not {kind(part)}")
        shown = _MEDIA & {part.get("type"), *(key for key, entry in part.items() if entry is not None)}
        if shown:
            raise bad(origin, f"{field}[{index}]", f"holds {min(shown)}; only text is trained", "leave out rows with media")
        if not isinstance(part.get("text"), str):
            raise bad(origin, f"{field}[{index}].text", "must be a string")
        # Readers of typed tables fill absent keys with null; templates test whether a key is there.
        parts.append({key: entry for key, entry in part.items() if entry is not None})
    return parts


def _reasoning(item: Mapping[str, Any], field: str, origin: Origin) -> tuple[str | None, str | None]:
    for name in _REASONING:
        value = item.get(name)
        if isinstance(value, str):
            return value, name
        if value is not None:
            raise bad(origin, f"{field}.{name}", f"must be a string, not {kind(value)}")
    return None, None


def _tool_calls(value: Any, field: str, origin: Origin) -> Sequence[Any] | None:
    if value is None or value == "" or value == []:
        return None
    if isinstance(value, str):
        value = base.from_json(value, field, origin)
    calls = [value] if isinstance(value, Mapping) else value
    if not isinstance(calls, list | tuple):
        raise bad(origin, field, f"must be a list of calls, not {kind(value)}")
    for index, call in enumerate(calls):
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise bad(origin, f"{field}[{index}]", "must be an object with a function name and arguments")
    return list(calls) or None


def _weight(item: Mapping[str, Any], role: str, field: str, origin: Origin) -> float | None:
    given = [(name, item[name]) for name in _SWITCHES if item.get(name) is not None]
    if not given:
        return None
    weights = {name: _switch(name, value, f"{field}.{name}", origin) for name, value in given}
    if len(set(weights.values())) > 1:
        raise bad(origin, field, f"says different things in {' and '.join(weights)}", "keep one of them")
    weight = next(iter(weights.values()))
    if weight > 0 and role != "assistant":
        raise bad(origin, f"{field}.{given[0][0]}", f"asks to train a {role} turn; only assistant turns are trained")
    return weight


def _switch(name: str, value: Any, field: str, origin: Origin) -> float:
    if name == "train":
        if not isinstance(value, bool):
            raise bad(origin, field, f"must be true or false, not {value!r}")
        return float(value)
    if (isinstance(value, bool) and name == "weight") or not isinstance(value, int | float):
        raise bad(origin, field, f"must be a number, not {kind(value)}")
    if name == "loss_mask" and value not in (0, 1):
        raise bad(origin, field, f"must be 0 or 1, not {value!r}")
    if not 0 <= float(value) < float("inf"):
        raise bad(origin, field, f"must be a finite number of at least 0, not {value!r}")
    return float(value)
