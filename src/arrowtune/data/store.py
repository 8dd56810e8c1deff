"""Reading a store: mapped lazily, nothing copied but what is asked for."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowtune.data.copy_rows import copy_rows
from arrowtune.data.shelf import TOUCH_SECONDS, touch
from arrowtune.data.store_batch import Places, to_numpy
from arrowtune.data.store_format import ARRAYS, HISTORY, MANIFEST, SELECTION, STORE_VERSION
from arrowtune.data.store_mapped import MappedFile, NotFlat
from arrowtune.data.store_writer import Writer
from arrowtune.errors import StoreError
from arrowtune.fingerprint import digest_file
from arrowtune.protocols import Tokens
from arrowtune.types import Example, IntArray, Origin

__all__ = ["Places", "Store", "Writer"]

_AGAIN = "run arrowtune prepare again; it makes the store anew"


class Store:
    """Tokenised examples in source order: random access over memory-mapped Arrow files.

    Data files are mapped when first touched and hold no file descriptor. Pickles as its path.

    Args:
        path: The folder.
        name: What the examples are called in reports; as prepared when absent.

    Attributes:
        path: The folder.
        manifest: Counts, skips, identity and its parts, sources and files.
        name: See above.
        identity: A digest of everything that decides the content.
        lengths: int32[n], tokens of each example.
        trained_tokens: int32[n], positions with weight; the first position never counts.
        loss_weight_sums: float64[n], over the same positions.

    Raises:
        StoreError: There is no store, it is torn, or another version wrote it.
    """

    def __init__(self, path: str | Path, *, name: str | None = None) -> None:
        self.path = Path(path)
        self.manifest: dict[str, Any] = read_manifest(self.path)
        check_files(self.path, self.manifest)
        check_links(self.path, self.manifest)
        self.identity: str = self.manifest["identity"]
        self.name = name or _name_of(self.path) or self.identity[:12]
        arrays = {array: _map_array(self.path, array, dtype, len(self)) for array, dtype in ARRAYS.items()}
        self.lengths: npt.NDArray[np.int32] = arrays["lengths"]
        self.trained_tokens: npt.NDArray[np.int32] = arrays["trained_tokens"]
        self.loss_weight_sums: npt.NDArray[np.float64] = arrays["loss_weight_sums"]
        self._parts = parts_of(self.path, self.manifest)
        self._selected = _map_selection(self.path, self.manifest)
        self._firsts = np.cumsum([0, *(part.rows for part in self._parts)], dtype=np.int64)
        self._open: dict[int, MappedFile] = {}
        self._say_used()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (self.path, self.name))

    def __len__(self) -> int:
        rows: int = self.manifest["rows"]
        return rows

    def __getitem__(self, row: int) -> Example:
        """One example with the address of its raw row.

        Raises:
            IndexError: There is no such row.
        """
        index = row + len(self) if row < 0 else row
        if not 0 <= index < len(self):
            raise IndexError(f"row {row} of a store with {len(self)} rows")
        tokens = self._read(np.array([index]))
        weights = tokens.loss_weights
        if self.manifest["loss_weights"] == "uint8":
            weights = weights.astype(np.uint8)
        return Example(tokens.input_ids, weights, self._origin(index))

    def fetch(self, rows: IntArray) -> Tokens:
        """The examples of `rows`, in that order, as fresh arrays; weights as float32.

        Raises:
            IndexError: There is no such row.
        """
        if time.monotonic() > self._used + TOUCH_SECONDS:
            self._say_used()
        wanted = np.asarray(rows, np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} of a store with {len(self)} rows")
        return self._read(wanted)

    def _read(self, wanted: npt.NDArray[np.int64]) -> Tokens:
        lengths = self.lengths[wanted]
        offsets = np.zeros(len(wanted) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        places = wanted if self._selected is None else self._selected[wanted]
        files = np.searchsorted(self._firsts, places, "right") - 1
        size = int(offsets[-1])
        # Only files of others come without weights.
        weights = np.ones(size, np.float32) if self.linked else np.empty(size, np.float32)
        found = Tokens(np.empty(size, np.int32), weights, offsets)
        for number in np.unique(files).tolist():
            mine = np.flatnonzero(files == number)
            file = self._file(number)
            id_starts, weight_starts = file.starts(places[mine] - self._firsts[number])
            # A row may be longer than is asked for, where it is cut to `max_length`.
            copy_rows(file.ids.values, id_starts, lengths[mine], found.input_ids, offsets[mine])
            if file.weights is not None and weight_starts is not None:
                copy_rows(file.weights.values, weight_starts, lengths[mine], found.loss_weights, offsets[mine])
        if self.linked:
            found.loss_weights[offsets[:-1]] = 0  # A store's own weights were written so.
        return found

    def raw_rows(self) -> npt.NDArray[np.int64]:
        """int64[n]: which of all raw rows of the source each example comes from, ascending."""
        if self.linked:
            return np.arange(len(self), dtype=np.int64) if self._selected is None else self._selected
        firsts = np.cumsum([0, *(source["rows_read"] for source in self.manifest["sources"])], dtype=np.int64)
        found = [
            firsts[to_numpy(batch["file"])] + to_numpy(batch["row"])
            for number in range(len(self._parts))
            for batch in self._file(number).batches
        ]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    @property
    def linked(self) -> bool:
        """Whether the tokens lie in files of the source, and not in the store."""
        return "linked" in self.manifest

    def _origin(self, index: int) -> Origin | None:
        place = index if self._selected is None else int(self._selected[index])
        number = int(np.searchsorted(self._firsts, place, "right")) - 1
        row = place - int(self._firsts[number])
        if self.linked:
            return Origin(self.manifest["sources"][number]["name"], row)
        file = self._file(number)
        source, source_row, line = (file.value(column, row) for column in ("file", "row", "line"))
        return Origin(self.manifest["sources"][source]["name"], source_row, line or None) if source >= 0 else None

    def verify(self) -> None:
        """Compare every file with its digest.

        Raises:
            StoreError: One differs.
        """
        files = [(self.path / entry["name"], entry["digest"]) for entry in self.manifest["files"]]
        if self.linked:
            files += [(part.path, part.digest) for part in self._parts]
        for path, digest in files:
            if digest_file(path) != digest:
                raise StoreError(f"the store {self.path} is damaged: {path.name} is not what was written", hint=_AGAIN)

    def _say_used(self) -> None:
        """So that nobody removes what is read, on whatever machine."""
        self._used = time.monotonic()
        touch(self.path)

    def _file(self, number: int) -> MappedFile:
        if number not in self._open:
            part = self._parts[number]
            try:
                self._open[number] = MappedFile(part.path, part.ids, part.weights)
            except (OSError, pa.ArrowException, NotFlat) as error:
                raise StoreError(f"the store {self.path} is damaged: {part.path.name}: {error}", hint=_AGAIN) from None
        return self._open[number]


@dataclass(frozen=True, slots=True)
class Part:
    """A file that holds tokens of a store: its own, or one of the source that it is linked to.

    Attributes:
        path: The file.
        rows: All rows of it.
        ids, weights: The names of its columns; "" where every token weighs 1.
        digest: Of the file.
    """

    path: Path
    rows: int
    ids: str
    weights: str
    digest: str


def parts_of(path: Path, manifest: Mapping[str, Any]) -> list[Part]:
    """The files that hold the tokens of a store, in order."""
    if (linked := manifest.get("linked")) is not None:
        return [Part(Path(one["path"]), one["rows"], one["ids"], one["weights"], one["digest"]) for one in linked]
    data = (entry for entry in manifest["files"] if entry["name"].startswith("data-"))
    return [Part(path / one["name"], one["rows"], "input_ids", "loss_weights", one["digest"]) for one in data]


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a store.

    Raises:
        StoreError: There is none, it cannot be read, or another version wrote it.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"there is no store in {path}: {MANIFEST} is missing", hint=_AGAIN) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"the store {path} is damaged: {MANIFEST} cannot be read: {error}", hint=_AGAIN) from None
    version = manifest.get("version") if isinstance(manifest, dict) else None
    if version != STORE_VERSION:
        raise StoreError(f"the store {path} has version {version}, and this arrowtune reads version {STORE_VERSION}", hint=_AGAIN)
    return dict(manifest)


def check_files(path: Path, manifest: Mapping[str, Any]) -> None:
    """Make sure that every file of a store is there and as long as its manifest says.

    Raises:
        StoreError: One is not.
    """
    for entry in manifest["files"]:
        try:
            size = (path / entry["name"]).stat().st_size
        except OSError:
            raise StoreError(f"the store {path} is torn: {entry['name']} is missing", hint=_AGAIN) from None
        if size != entry["size"]:
            raise StoreError(
                f"the store {path} is torn: {entry['name']} has {size} bytes instead of {entry['size']}", hint=_AGAIN
            )


def check_links(path: Path, manifest: Mapping[str, Any]) -> None:
    """Make sure that the files a store is linked to are as they were when they were checked.

    Raises:
        StoreError: One is not.
    """
    for entry in manifest.get("linked", ()):
        try:
            found = os.stat(entry["path"])
        except OSError as error:
            reason = "is not there any more" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            raise StoreError(f"{entry['path']}, which the store {path} is linked to, {reason}", hint=_AGAIN) from None
        if (found.st_size, found.st_mtime_ns) != (entry["size"], entry["mtime_ns"]):
            raise StoreError(f"{entry['path']}, which the store {path} is linked to, has changed since", hint=_AGAIN)


def _map_selection(path: Path, manifest: Mapping[str, Any]) -> npt.NDArray[np.int64] | None:
    """Which rows of the linked files the examples are; None where they are all."""
    entry = next((entry for entry in manifest["files"] if entry["name"] == f"{SELECTION}.npy"), None)
    return None if entry is None else _map_array(path, SELECTION, np.dtype(np.int64), entry["rows"])


def _map_array(path: Path, name: str, dtype: np.dtype[Any], rows: int) -> npt.NDArray[Any]:
    """A mapped .npy file that holds no file descriptor."""
    file = path / f"{name}.npy"
    try:
        with pa.memory_map(str(file)) as mapped:
            buffer = mapped.read_buffer()
        head = io.BytesIO(memoryview(buffer)[:1024])
        np.lib.format.read_magic(head)
        shape, _, found = np.lib.format.read_array_header_1_0(head)
        if found != dtype or shape != (rows,):
            raise ValueError(f"it holds {found}{list(shape)} instead of {dtype}[{rows}]")
        return np.frombuffer(buffer, dtype, rows, head.tell())
    except (OSError, ValueError) as error:
        raise StoreError(f"the store {path} is damaged: {file.name}: {error}", hint=_AGAIN) from None


def _name_of(path: Path) -> str | None:
    try:
        return str(json.loads((path / HISTORY).read_bytes())["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _reopen(path: Path, name: str) -> Store:
    return Store(path, name=name)
