"""Reading a store: mapped lazily, nothing copied but what is asked for."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowtune.data.shelf import TOUCH_SECONDS, touch
from arrowtune.data.store_batch import Places
from arrowtune.data.store_format import ARRAYS, HISTORY, MANIFEST, STORE_VERSION
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
        self.identity: str = self.manifest["identity"]
        self.name = name or _name_of(self.path) or self.identity[:12]
        arrays = {array: _map_array(self.path, array, dtype, len(self)) for array, dtype in ARRAYS.items()}
        self.lengths: npt.NDArray[np.int32] = arrays["lengths"]
        self.trained_tokens: npt.NDArray[np.int32] = arrays["trained_tokens"]
        self.loss_weight_sums: npt.NDArray[np.float64] = arrays["loss_weight_sums"]
        data = [entry for entry in self.manifest["files"] if entry["name"].startswith("data-")]
        self._names = [entry["name"] for entry in data]
        self._firsts = np.cumsum([0, *(entry["rows"] for entry in data)], dtype=np.int64)
        self._open: dict[int, _DataFile] = {}
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
        number = int(np.searchsorted(self._firsts, index, "right")) - 1
        file, within = self._file(number), np.array([index - int(self._firsts[number])])
        ids, weights, _ = file.spans(within)
        found, source_row, line = file.place(int(within[0]))
        origin = Origin(self.manifest["sources"][found]["name"], source_row, line or None) if found >= 0 else None
        return Example(file.ids[ids[0, 0] : ids[0, 1]].copy(), file.weights[weights[0, 0] : weights[0, 1]].copy(), origin)

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
        offsets = np.zeros(len(wanted) + 1, np.int64)
        np.cumsum(self.lengths[wanted], out=offsets[1:])
        ids = np.empty(int(offsets[-1]), np.int32)
        weights = np.empty(int(offsets[-1]), np.float32)
        files = np.searchsorted(self._firsts, wanted, "right") - 1
        for number in np.unique(files).tolist():
            mine = np.flatnonzero(files == number)
            file = self._file(number)
            id_spans, weight_spans, _ = file.spans(wanted[mine] - self._firsts[number])
            starts, stops = offsets[mine].tolist(), offsets[mine + 1].tolist()
            for start, stop, (a, b), (c, d) in zip(starts, stops, id_spans.tolist(), weight_spans.tolist(), strict=True):
                ids[start:stop] = file.ids[a:b]
                weights[start:stop] = file.weights[c:d]
        return Tokens(ids, weights, offsets)

    def verify(self) -> None:
        """Compare every file with its digest.

        Raises:
            StoreError: One differs.
        """
        for entry in self.manifest["files"]:
            if digest_file(self.path / entry["name"]) != entry["digest"]:
                raise StoreError(f"the store {self.path} is damaged: {entry['name']} is not what was written", hint=_AGAIN)

    def _say_used(self) -> None:
        """So that nobody removes what is read, on whatever machine."""
        self._used = time.monotonic()
        touch(self.path)

    def _file(self, number: int) -> _DataFile:
        if number not in self._open:
            self._open[number] = _DataFile(self.path / self._names[number])
        return self._open[number]


@dataclass(frozen=True, slots=True)
class _Column:
    """Where a list column lies in a file: per batch, the places of its offsets and of its values, in elements."""

    offsets: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]


class _DataFile:
    """One mapped Arrow file, seen as flat arrays: the place of an example is arithmetic on the mapped offsets."""

    def __init__(self, path: Path) -> None:
        try:
            with pa.memory_map(str(path)) as mapped:
                # The buffer keeps the mapping; the descriptor closes here.
                buffer = mapped.read_buffer()
            self._reader = pa.ipc.open_file(buffer)
            batches = [self._reader.get_batch(index) for index in range(self._reader.num_record_batches)]
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"the store {path.parent} is damaged: {path.name}: {error}", hint=_AGAIN) from None
        whole = memoryview(buffer)
        self.ids: npt.NDArray[np.int32] = np.frombuffer(whole[: len(whole) // 4 * 4], np.int32)
        fractional = self._reader.schema.field("loss_weights").type.value_type == pa.float32()
        self.weights: npt.NDArray[Any] = self.ids.view(np.float32) if fractional else np.frombuffer(whole, np.uint8)
        self._firsts = np.cumsum([0, *(batch.num_rows for batch in batches)], dtype=np.int64)
        self._ids = _column(batches, "input_ids", buffer.address, 4)
        self._weights = _column(batches, "loss_weights", buffer.address, self.weights.itemsize)

    def spans(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Start and stop of each row in `ids` and in `weights`, int64[n, 2] each, and the batch of each row."""
        batch = np.searchsorted(self._firsts, rows, "right") - 1
        within = rows - self._firsts[batch]
        found = []
        for column in (self._ids, self._weights):
            place = column.offsets[batch] + within
            ends = np.stack([self.ids[place], self.ids[place + 1]], axis=1).astype(np.int64)
            found.append(ends + column.values[batch][:, None])
        return found[0], found[1], batch

    def place(self, row: int) -> tuple[int, int, int]:
        """File, row and line of an example's raw row."""
        index = int(np.searchsorted(self._firsts, row, "right")) - 1
        batch = self._reader.get_batch(index)
        within = row - int(self._firsts[index])
        return batch["file"][within].as_py(), batch["row"][within].as_py(), batch["line"][within].as_py()


def _column(batches: list[pa.RecordBatch], name: str, base: int, width: int) -> _Column:
    arrays = [batch.column(name) for batch in batches]
    offsets = [(array.offsets.buffers()[1].address - base) // 4 for array in arrays]
    values = [(array.values.buffers()[1].address - base) // width for array in arrays]
    return _Column(np.array(offsets, np.int64), np.array(values, np.int64))


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
