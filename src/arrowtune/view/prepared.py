"""What `prepare` made, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arrowtune.data.reasons import explain
from arrowtune.view.text import count, duration, many, table, visible

HEAD = ("source", "role", "rows read", "used", "skipped", "tokens", "trained tokens", "tokens/s")


def prepared_text(stores: Sequence[Mapping[str, Any]]) -> str:
    """A table of the stores, why rows were skipped, and where the stores are.

    Args:
        stores: The objects that `prepare --json` lists.
    """
    parts = [table(HEAD, [_row(store) for store in stores], left=2)]
    if skipped := [line for store in stores for line in skipped_lines(store["name"], store["skipped"])]:
        parts.append("\n".join(["skipped", *skipped]))
    width = max((len(store["name"]) for store in stores), default=0)
    lines = [f"  {visible(store['name']).ljust(width)}  {store['path']}  ({_age(store)})" for store in stores]
    parts.append("\n".join(["stores", *lines]))
    return "\n\n".join(parts)


def skipped_lines(name: str, skipped: Mapping[str, int]) -> list[str]:
    """One indented line per reason, the most frequent first."""
    ordered = sorted(skipped.items(), key=lambda item: (-item[1], item[0]))
    return [f"  {visible(name)}: {many(rows, 'row')}: {explain(reason)} ({reason})" for reason, rows in ordered]


def _row(store: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = (store["rows_read"], store["rows"], sum(store["skipped"].values()), store["tokens"], store["trained_tokens"])
    speed = "reused" if store["reused"] else count(store["tokens_per_second"])
    return (visible(store["name"]), store["role"], *(count(number) for number in numbers), speed)


def _age(store: Mapping[str, Any]) -> str:
    return "reused" if store["reused"] else f"made in {duration(store['seconds'])}"
