"""What the cache holds and what was removed from it, for people and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arrowtune.data.cache import RECENTLY, Entry
from arrowtune.data.prune import Pruned
from arrowtune.view.text import count, many, table, visible

HEAD = ("kind", "folder", "source", "role", "made of", "rows", "tokens", "size", "last used")
_NAME = 20


def cached_json(folder: Path, found: Sequence[Entry]) -> dict[str, Any]:
    """The object that `cache list --json` prints."""
    total = sum(entry.size for entry in found)
    return {"cache": str(folder), "size": total, "entries": [entry.to_json() for entry in found]}


def cached_text(folder: Path, found: Sequence[Entry]) -> str:
    """A table, what is wrong with what, and the sum."""
    total = f"{size(sum(entry.size for entry in found))} in {folder}"
    if not found:
        return f"nothing in {folder}"
    parts = [table(HEAD, [_row(entry) for entry in found], left=5)]
    if notes := [
        f"  {_short(entry)}: {visible(note)}"
        for entry in found
        for note in (entry.state, entry.held)
        if note not in ("", RECENTLY)
    ]:
        parts.append("\n".join(notes))
    return "\n\n".join([*parts, total])


def pruned_json(pruned: Pruned, dry_run: bool) -> dict[str, Any]:
    """The object that `cache prune --json` prints."""
    removed, held = ([entry.to_json() for entry in entries] for entries in (pruned.removed, pruned.held))
    return {"dry_run": dry_run, "freed": pruned.freed, "removed": removed, "in_use": held}


def pruned_text(pruned: Pruned, dry_run: bool) -> str:
    """One line for each thing, and the sum."""
    lines = [f"{entry.kind} {entry.path} {size(entry.size)}{_of(entry)}" for entry in pruned.removed]
    lines += [f"kept: {entry.kind} {entry.path}: {visible(entry.held)}" for entry in pruned.held]
    verb = "would free" if dry_run else "freed"
    return "\n".join([*lines, f"{verb} {size(pruned.freed)} ({many(pruned.freed, 'byte')})"])


def size(number: int) -> str:
    """Bytes as people read them: 512 B, 3.1 MB, 2.0 TB."""
    value, unit = float(number), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"


def age(seconds: float) -> str:
    """How long ago: 5 min, 3 h, 12 d."""
    for span, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= span:
            return f"{int(seconds // span)} {unit}"
    return "now"


def _row(entry: Entry) -> tuple[str, ...]:
    rows, tokens = (count(number) if entry.kind == "store" else "" for number in (entry.rows, entry.tokens))
    known = entry.inputs
    made = ", ".join(part for part in (known.get("format", ""), f"max_length {known['max_length']}") if part) if known else ""
    source = visible(entry.name) or "-"
    return (entry.kind, _short(entry), source, entry.role, made, rows, tokens, size(entry.size), age(entry.age))


def _short(entry: Entry) -> str:
    name = entry.path.name
    return name if len(name) <= _NAME else f"{name[:12]}...{name[32:]}"


def _of(entry: Entry) -> str:
    return f" ({visible(entry.name)}, {age(entry.age)})" if entry.name else ""
