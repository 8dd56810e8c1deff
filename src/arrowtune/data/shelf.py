"""Where stores stand, and whether somebody uses them.

A store never changes and is never taken from under its readers. One that is made again with other bytes, because the old
one is damaged or another version made it, stands beside the old one as its next generation: `IDENTITY.2`, `IDENTITY.3`.
Whoever opens a file of the old one, now or later, finds what its manifest says.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from arrowtune.data.store_format import MANIFEST

TOUCH_SECONDS = 300
"""A reader says that often that a store is in use."""

IN_USE_SECONDS = 3 * TOUCH_SECONDS
"""So long after the last word a store counts as in use."""


def generations(stores: Path, identity: str) -> list[Path]:
    """Everything that stands under the name of an identity, oldest first."""
    found = [(1, stores / identity)] if (stores / identity).exists() else []
    for path in stores.glob(f"{identity}.*"):
        number = path.name.rpartition(".")[2]
        if number.isdecimal():
            found.append((int(number), path))
    return [path for _, path in sorted(found)]


def newest(stores: Path, identity: str) -> Path | None:
    """The newest generation that was published."""
    published = [path for path in generations(stores, identity) if (path / MANIFEST).is_file()]
    return published[-1] if published else None


def vacant(stores: Path, identity: str) -> Path:
    """The name of the next generation."""
    taken = generations(stores, identity)
    if not taken:
        return stores / identity
    last = taken[-1].name.rpartition(".")[2]
    return stores / f"{identity}.{int(last) + 1 if taken[-1].name != identity else 2}"


def touch(folder: Path) -> None:
    """Say that a store, or what else stands in the cache, is used now; the file system's own clock counts."""
    with contextlib.suppress(OSError):  # Of another user, or read-only: those who remove it see its age alone.
        os.utime(folder)


def mapped_here(folders: Sequence[Path]) -> set[Path]:
    """Those of some folders that a process of this machine, as far as this one may see, has a file of mapped."""
    left = {folder: os.fsencode(f"{folder.resolve()}{os.sep}") for folder in folders}
    found = set[Path]()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            mapped = maps.read_bytes()
            found |= {folder for folder, inside in left.items() if inside in mapped}
    return found
