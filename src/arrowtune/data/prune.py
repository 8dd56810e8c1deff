"""Removing from the cache what is not needed any more, and never what somebody uses."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arrowtune.data.cache import Entry, entries, used_since
from arrowtune.data.discard import discard
from arrowtune.data.workspace import finish_left, lease_of
from arrowtune.errors import ConfigError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True)
class Wish:
    """What may go. Torn and superseded stores and what killed processes left always may.

    Attributes:
        older_than: Stores and converted tokenizers that were not used for so many seconds.
        keep: All stores of a source but so many that were used last; with `older_than`, both must hold.
        unfinished: The units of stores that were never finished.
    """

    older_than: float | None = None
    keep: int | None = None
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed, or would be, and what would be but for its being in use."""

    removed: Sequence[Entry]
    held: Sequence[Entry]

    @property
    def freed(self) -> int:
        """Bytes."""
        return sum(entry.size for entry in self.removed)


def prune(cache: Path, wish: Wish, *, dry_run: bool = False) -> Pruned:
    """Remove what the wish names.

    Args:
        cache: The folder.
        wish: What may go.
        dry_run: Only say it.
    """
    chosen = _chosen(entries(cache), wish)
    removed = [entry for entry in chosen if not entry.held]
    if not dry_run:
        removed = [entry for entry in removed if _remove(entry)]
    return Pruned(removed, [entry for entry in chosen if entry.held])


def seconds_of(text: str) -> float:
    """A time span: `12h`, `30d`, `2w`.

    Raises:
        ConfigError: It is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is no time span", hint="write a number and s, m, h, d or w, such as 30d")
    return float(found[1]) * _SECONDS[found[2]]


def _chosen(found: Sequence[Entry], wish: Wish) -> list[Entry]:
    rank: dict[tuple[str, str], int] = defaultdict(int)
    chosen = []
    for entry in found:  # Of each source, the store that was used last comes first.
        if entry.kind == "store" and not (entry.superseded or entry.torn):
            place = rank[entry.name, entry.role]
            rank[entry.name, entry.role] += 1
            go = _goes(entry, wish, place)
        elif entry.kind == "tokenizer":
            go = wish.older_than is not None and entry.age >= wish.older_than
        else:
            go = entry.kind != "unfinished" or wish.unfinished
        if go:
            chosen.append(entry)
    return chosen


def _goes(entry: Entry, wish: Wish, place: int) -> bool:
    if wish.older_than is None and wish.keep is None:
        return False
    old = wish.older_than is None or entry.age >= wish.older_than
    return old and (wish.keep is None or place >= wish.keep)


def _remove(entry: Entry) -> bool:
    """Whether it is gone; what was used since it was looked at stays."""
    if entry.kind == "unfinished":
        if entry.path.is_dir() and lease_of(entry.path).exists():
            discard(lease_of(entry.path))  # Of a process that is gone.
        finish_left(entry.path)
    else:
        if used_since(entry):
            return False
        discard(entry.path)
    return not entry.path.exists()
