"""What the cache holds: stores, units of unfinished ones, converted tokenizers, and what killed processes left."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from arrowtune.data.convert import CONVERTED
from arrowtune.data.discard import GONE
from arrowtune.data.identity import read_history
from arrowtune.data.lease import is_held
from arrowtune.data.shelf import IN_USE_SECONDS, generations, mapped_here
from arrowtune.data.store import check_files
from arrowtune.data.store_format import MANIFEST, STORE_VERSION
from arrowtune.data.store_writer import TEMPORARY, is_abandoned
from arrowtune.data.workspace import ABOUT, DIGESTS, STORES, UNITS, lease_of
from arrowtune.errors import StoreError

Kind = Literal["store", "unfinished", "tokenizer", "left over"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in the cache.

    Attributes:
        kind: What it is.
        path: Where.
        size: Bytes of its files.
        used: When it was last used, by the clock of the file system that it is on.
        age: Seconds since then.
        held: Why it must not be removed now; empty where it may be.
        state: What is wrong with it; empty where nothing is: an old version, torn, superseded by a newer generation.
        name, role, source: Of the source, where that is known: its name, its role, its path when it was prepared.
        rows, tokens: Of a store.
        finished: When a store was made, ISO 8601; empty where that is not known.
        inputs: Everything that decides a store's identity, by name.
    """

    kind: Kind
    path: Path
    size: int
    used: float
    age: float
    held: str = ""
    state: str = ""
    name: str = ""
    role: str = ""
    source: str = ""
    rows: int = 0
    tokens: int = 0
    finished: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def superseded(self) -> bool:
        """Whether a newer generation is taken in its place."""
        return self.state == SUPERSEDED

    @property
    def torn(self) -> bool:
        """Whether it is a store that nobody can read."""
        return self.state.startswith(TORN)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "path": str(self.path), "inputs": dict(self.inputs)}


RECENTLY = f"used within the last {IN_USE_SECONDS // 60} minutes"
SUPERSEDED = "superseded"
TORN = "torn"


def entries(cache: Path) -> list[Entry]:
    """Everything in a cache, by kind, the one that was used last first.

    Args:
        cache: The folder; it need not exist.
    """
    now = clock_of(cache)
    stores = [path for path in _folders(cache / STORES) if not path.name.startswith(".")]
    mapped = mapped_here(stores)
    found = [_store(path, now, path in mapped) for path in stores]
    found += [_unfinished(path, now) for path in _folders(cache / UNITS) if not path.name.startswith(".")]
    found += [
        _entry("tokenizer", path, now, held=RECENTLY) for path in _folders(cache / CONVERTED) if not path.name.startswith(".")
    ]
    found += [entry for parent in (STORES, UNITS, CONVERTED, DIGESTS) for entry in _left_over(cache / parent, now)]
    order = ("store", "unfinished", "tokenizer", "left over")
    return sorted(found, key=lambda entry: (order.index(entry.kind), entry.age, entry.path))


def used_since(entry: Entry) -> bool:
    """Whether somebody has used it since it was looked at, or uses it now."""
    return _changed(entry.path) != entry.used or bool(mapped_here([entry.path]))


def clock_of(folder: Path) -> float:
    """The time as the file system of a folder has it; this machine's where it cannot be asked."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def _store(path: Path, now: float, mapped: bool) -> Entry:
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        state = _state(path, manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        manifest, state = {}, f"{TORN}: {MANIFEST} cannot be read: {error}"
    if not isinstance(manifest, dict):
        manifest = {}
    history = read_history(path)
    return _entry(
        "store",
        path,
        now,
        held="a process of this machine reads it" if mapped else RECENTLY,
        always=mapped,
        state=state,
        **_about(history),
        rows=int(manifest.get("rows") or 0),
        tokens=int(manifest.get("tokens") or 0),
        finished=str(history.get("finished", "")),
        inputs=dict(manifest.get("parts") or {}),
    )


def _state(path: Path, manifest: Mapping[str, Any]) -> str:
    if (version := manifest.get("version")) != STORE_VERSION:
        return f"of version {version}, which this arrowtune does not read"
    identity = path.name.partition(".")[0]
    if generations(path.parent, identity)[-1] != path:
        return SUPERSEDED
    try:
        check_files(path, manifest)
    except StoreError as error:
        return f"{TORN}: {error.message}"
    return ""


def _unfinished(path: Path, now: float) -> Entry:
    try:
        about = json.loads((path / ABOUT).read_bytes())
    except (OSError, ValueError):
        about = {}
    lease = lease_of(path)
    # A holder changes its lease all the time; one of another machine that does not is gone with it.
    lives = is_held(lease) and now - _changed(lease) < IN_USE_SECONDS
    return _entry("unfinished", path, now, held="a process works on it" if lives else "", always=lives, **_about(about))


def _left_over(parent: Path, now: float) -> Iterator[Entry]:
    for path in sorted(parent.glob(".*")) if parent.is_dir() else ():
        if path.name.startswith(GONE):
            yield _entry("left over", path, now)
        elif path.name.startswith(TEMPORARY):
            held = not is_abandoned(path, now)
            yield _entry("left over", path, now, held="a process writes it" if held else "", always=held)


def _entry(kind: Kind, path: Path, now: float, *, held: str = "", always: bool = False, **fields: Any) -> Entry:
    """An entry that is held always, or while its last use is recent, as its kind has it."""
    used = _changed(path)
    age = max(0.0, now - used)
    return Entry(kind, path, _size(path), used, age, held if always or age < IN_USE_SECONDS else "", **fields)


def _about(known: Any) -> dict[str, str]:
    known = known if isinstance(known, dict) else {}
    return {"name": str(known.get("name", "")), "role": str(known.get("role", "")), "source": str(known.get("path", ""))}


def _folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    total = 0
    for inside in [path, *path.rglob("*")] if path.is_dir() else [path]:
        with contextlib.suppress(OSError):
            total += inside.stat().st_size if inside.is_file() else 0
    return total
