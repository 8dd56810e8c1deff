"""Text that cannot be written as UTF-8: halves of surrogate pairs that JSON escapes leave behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from arrowtune.types import Conversation, Message


def repair(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates by U+FFFD; other text comes back as it is."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def repair_value(value: Any) -> Any:
    """`repair` for every string of a plain value, keys included."""
    if isinstance(value, str):
        return repair(value)
    if isinstance(value, dict):
        return {repair_value(key): repair_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [repair_value(item) for item in value]
    return value


def repair_conversation(item: Conversation) -> Conversation:
    """`repair` for every string of a conversation."""
    messages = tuple(_repair_message(message) for message in item.messages)
    kwargs = repair_value(dict(item.template_kwargs))
    return replace(item, messages=messages, tools=repair_value(item.tools), template_kwargs=kwargs)


def _repair_message(message: Message) -> Message:
    return replace(
        message,
        role=repair(message.role),
        content=repair_value(message.content),
        tool_calls=repair_value(message.tool_calls),
        reasoning=repair_value(message.reasoning),
        extra=repair_value(dict(message.extra)),
    )
