"""Digests: of bytes, of files, of plain values, and the memory of what was digested before.

xxh3-128 guards against accidents and change, not against an adversary: it is the fastest digest that is wide enough to
name content by.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import xxhash

_BLOCK = 1 << 20
# A file that changed within this time before it was read could change again without its times moving:
# the clock of a file system ticks every 4 to 10 ms.
_RACY_NS = 30_000_000


class Hasher(Protocol):
    """What hashes bytes as they pass."""

    def update(self, data: Any, /) -> None: ...

    def hexdigest(self) -> str: ...


def hasher() -> Hasher:
    """A running xxh3-128."""
    return xxhash.xxh3_128()


def digest_bytes(data: bytes | memoryview) -> str:
    """The xxh3-128 of `data`, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def digest_json(value: Any) -> str:
    """The digest of a plain value; equal values have equal digests whatever the order of their keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return digest_bytes(text.encode())


def digest_file(path: str | Path) -> str:
    """The digest of a file's bytes, read in blocks.

    Raises:
        OSError: The file cannot be read.
    """
    state = hasher()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The names whose values differ between two sets of named parts, sorted."""
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


@dataclass(frozen=True, slots=True)
class FileState:
    """What the file system says of a file: while this stays the same, so does the content."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: str) -> FileState:
        """The state now.

        Raises:
            OSError: There is no such file.
        """
        stat = os.stat(path)
        return cls(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)

    def key(self) -> list[int]:
        """The numbers that decide whether two states are the same."""
        return [self.size, self.mtime_ns, self.ctime_ns, self.inode]

    def settled(self) -> bool:
        """Whether any change from now on would move the file's times."""
        return time.time_ns() - self.ctime_ns > _RACY_NS


class Memory:
    """Facts about files, remembered as long as the files' states stay the same.

    One small JSON file for each folder of sources, replaced whole, with what other processes have learnt meanwhile kept:
    two that save in the same instant may lose what one of them learnt, and never read a torn file.

    Args:
        folder: Where to remember; made when there is something to remember.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[str, Any]] = {}
        self._changed: dict[str, set[str]] = {}

    def recall(self, state: FileState, question: str) -> Any:
        """The fact learnt under `question` for a file in this very state, else None."""
        entry = self._of_folder(state).get(os.path.basename(state.path))
        return entry["facts"].get(question) if entry and entry["state"] == state.key() else None

    def learn(self, state: FileState, question: str, fact: Any) -> None:
        """Remember a plain value for a file in this state; kept by `save`."""
        entries, name = self._of_folder(state), os.path.basename(state.path)
        entry = entries.get(name)
        if entry is None or entry["state"] != state.key():
            entry = entries[name] = {"state": state.key(), "facts": {}}
        entry["facts"][question] = fact
        self._changed.setdefault(self._file_of(state), set()).add(name)

    def save(self) -> None:
        """Write what was learnt. A cache that cannot be written costs a digest next time, nothing else."""
        for name, learnt in sorted(self._changed.items()):
            known = self._read(name)
            for entry in learnt:
                own, theirs = self._known[name][entry], known.get(entry)
                if theirs and theirs["state"] == own["state"]:
                    own["facts"] = {**theirs["facts"], **own["facts"]}
                known[entry] = own
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                write_atomic(self._folder / name, json.dumps(known, sort_keys=True).encode())
        self._changed.clear()

    def refresh(self) -> None:
        """Save, and look again for what other processes have learnt meanwhile."""
        self.save()
        self._known.clear()

    def _file_of(self, state: FileState) -> str:
        return digest_bytes(os.path.dirname(state.path).encode("utf-8", "surrogateescape")) + ".json"

    def _of_folder(self, state: FileState) -> dict[str, Any]:
        name = self._file_of(state)
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> dict[str, Any]:
        try:
            entries = json.loads((self._folder / name).read_bytes())
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old bytes or the new ones, also after a power cut.

    Raises:
        OSError: The folder cannot be written; no temporary file is left behind.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
