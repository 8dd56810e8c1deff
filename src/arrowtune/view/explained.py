"""Why `prepare` would find or make the store of each source, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from arrowtune.view.text import many, visible

_FILES = 5
_DIGEST = 32
_SHORT = 12


def explained_text(sources: Sequence[Mapping[str, Any]]) -> str:
    """A paragraph for each source.

    Args:
        sources: The objects that `prepare --explain --json` lists.
    """
    return "\n\n".join("\n".join(_lines(source)) for source in sources)


def _lines(source: Mapping[str, Any]) -> Iterator[str]:
    what = "reused" if source["reused"] else "would be prepared"
    yield f"{visible(source['name'])} ({source['role']}): {what}, since {source['because']}"
    if source["store"]:
        yield f"  {source['store']}"
    if not source["nearest"]:
        return
    yield f"  {source['nearest']} is nearest; what differs:"
    width = max(len(entry["input"]) for entry in source["differs"])
    for entry in source["differs"]:
        yield f"  {entry['input'].ljust(width)}  {_change(entry)}"


def _change(entry: Mapping[str, Any]) -> str:
    if files := list(entry["files"]):
        rest = len(files) - _FILES
        return visible(", ".join(files[:_FILES]) + (f" and {many(rest, 'more file')}" if rest > 0 else ""))
    return f"{_value(entry['was'])} -> {_value(entry['now'])}"


def _value(text: str) -> str:
    """A value as it is, the beginning of a digest."""
    digest = len(text) == _DIGEST and set(text) <= set("0123456789abcdef")
    return (f"{text[:_SHORT]}..." if digest else visible(text)) or "nothing"
