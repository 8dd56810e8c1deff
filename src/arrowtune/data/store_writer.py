"""Writing a store: built in a folder beside its final place, made durable, published by one rename."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowtune.data.discard import discard, remove_gone
from arrowtune.data.lease import is_dead, this_process
from arrowtune.data.shelf import newest, vacant
from arrowtune.data.store_batch import Places, cut, make_batch, measure, parts
from arrowtune.data.store_files import ArrayFile, DataFile
from arrowtune.data.store_format import ARRAYS, BATCH_BYTES, FILE_BYTES, MANIFEST, SELECTION, STORE_VERSION, disk_error, schema
from arrowtune.fingerprint import digest_file
from arrowtune.protocols import Tokens

TEMPORARY = ".tmp-"
"""How the names of folders begin that are being built."""

_OWNER = ".owner"
_ROWS_AT_ONCE = 1 << 20
_ABANDONED_SECONDS = 3600
_SILENT_SECONDS = 86400


class Writer:
    """Builds one store.

    As a context manager it removes what it built unless `publish` was reached. It holds no example longer than a call.

    Args:
        path: The folder that the store becomes.
        fractional: Whether loss weights are floats; else they are 0 and 1 and take a byte each.
        file_bytes: A data file ends with the record batch that reaches this.
        batch_bytes: No record batch is larger, unless a single example is.
        mark: Becomes a part of the name of the folder that it is built in.

    Raises:
        StoreError: The parent folder cannot be written.
    """

    def __init__(
        self,
        path: Path,
        *,
        fractional: bool = False,
        file_bytes: int = FILE_BYTES,
        batch_bytes: int = BATCH_BYTES,
        mark: str = "",
    ) -> None:
        self.path = path
        self._schema = schema(fractional)
        self._file_bytes, self._batch_bytes = file_bytes, batch_bytes
        self._files: list[dict[str, Any]] = []
        self._data: DataFile | None = None
        self._tokens = self._trained = 0
        self._weight = 0.0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{mark}", dir=path.parent))
            (self._folder / _OWNER).write_text(json.dumps(this_process()))
            self._arrays = {name: ArrayFile(self._folder / f"{name}.npy", dtype) for name, dtype in ARRAYS.items()}
        except OSError as error:
            raise disk_error(error, path.parent) from None

    def append(self, tokens: Tokens, places: Places | None = None) -> None:
        """Add examples.

        Args:
            tokens: The examples, none of them empty.
            places: Where they come from.

        Raises:
            ValueError: An example is empty, or its weights are fractional and the store's are not.
            StoreError: The disk refuses.
        """
        for part in parts(tokens.offsets, self._batch_bytes):
            start, stop = int(tokens.offsets[part.start]), int(tokens.offsets[part.stop])
            batch = make_batch(
                Tokens(
                    tokens.input_ids[start:stop],
                    tokens.loss_weights[start:stop],
                    tokens.offsets[part.start : part.stop + 1] - start,
                ),
                places[part] if places is not None else Places.unknown(part.stop - part.start),
                self._schema,
            )
            self._append(batch)

    def append_batch(self, batch: pa.RecordBatch) -> None:
        """Add a record batch of the store's schema, in parts where it is too large.

        Raises:
            StoreError: The disk refuses.
        """
        for part in cut(batch, self._batch_bytes):
            self._append(part)

    def _append(self, batch: pa.RecordBatch) -> None:
        lengths, trained, sums = measure(batch)
        values: dict[str, npt.NDArray[Any]] = {"lengths": lengths, "trained_tokens": trained, "loss_weight_sums": sums}
        try:
            for name, array in self._arrays.items():
                array.append(values[name])
            if self._data is None:
                name = f"data-{sum(entry['name'].startswith('data-') for entry in self._files):05d}.arrow"
                self._data = DataFile(self._folder / name, self._schema)
            self._data.append(batch)
            if self._data.size >= self._file_bytes:
                self._end_file()
        except OSError as error:
            raise disk_error(error, self.path.parent) from None
        self._count(lengths, trained, sums)

    def _count(self, lengths: npt.NDArray[Any], trained: npt.NDArray[Any], sums: npt.NDArray[Any]) -> None:
        self._tokens += int(lengths.sum(dtype=np.int64))
        self._trained += int(trained.sum(dtype=np.int64))
        self._weight += float(sums.sum())

    def measured(
        self,
        lengths: npt.NDArray[Any],
        trained: npt.NDArray[Any],
        sums: npt.NDArray[Any],
        rows: npt.NDArray[np.int64],
        *,
        whole: bool,
    ) -> None:
        """Add examples whose tokens stay in files that the store is linked to; a store has either such or its own.

        Args:
            lengths: Tokens of each.
            trained: Positions with weight.
            sums: Of their weights.
            rows: Which rows of those files the examples are.
            whole: No row was left out between them and those added before.

        Raises:
            StoreError: The disk refuses.
        """
        try:
            if SELECTION not in self._arrays and not whole:
                # Until now every row was an example.
                self._arrays[SELECTION] = selection = ArrayFile(self._folder / f"{SELECTION}.npy", np.dtype(np.int64))
                before = self._arrays["lengths"].rows
                for start in range(0, before, _ROWS_AT_ONCE):
                    selection.append(np.arange(start, min(before, start + _ROWS_AT_ONCE)))
            values = {"lengths": lengths, "trained_tokens": trained, "loss_weight_sums": sums, SELECTION: rows}
            for name, array in self._arrays.items():
                array.append(values[name])
        except OSError as error:
            raise disk_error(error, self.path.parent) from None
        self._count(lengths, trained, sums)

    def publish(
        self,
        manifest: Mapping[str, Any],
        *,
        history: Mapping[str, Any] | None = None,
        path: Path | None = None,
        replace: bool = False,
    ) -> Path:
        """Make the store durable and visible, all at once.

        Args:
            manifest: What is said about it beside the counts that are known here; at least `identity`.
            history: What goes into `prepare.json`.
            path: The final folder, where its name was not known before.
            replace: Where a store of this name is there and is not the same, byte for byte, make this one its next generation;
                else that one stays and this one is dropped.

        Returns:
            The folder.

        Raises:
            StoreError: The disk refuses.
        """
        self.path = path or self.path
        try:
            self._end_file()
            rows = self._arrays["lengths"].rows
            self._files.extend(array.close() for array in self._arrays.values())
            counted = {"rows": rows, "tokens": self._tokens, "trained_tokens": self._trained, "loss_weight": self._weight}
            weights = str(self._schema.field("loss_weights").type.value_type)
            files = {"files": self._files, "version": STORE_VERSION, "loss_weights": "float32" if weights == "float" else weights}
            if history is not None:
                _write(self._folder / "prepare.json", history)
            _write(self._folder / MANIFEST, {**manifest, **counted, **files})
            _sync(self._folder)
            self.path = _publish(self._folder, self.path, replace=replace)
        except OSError as error:
            raise disk_error(error, self.path.parent) from None
        finally:
            self.abandon()
        return self.path

    def abandon(self) -> None:
        """Remove what was built and not published."""
        with contextlib.suppress(OSError):
            if self._data is not None:
                self._data.close()
            for array in self._arrays.values():
                array.close()
        self._data = None
        discard(self._folder)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abandon()

    def _end_file(self) -> None:
        if self._data is not None:
            data, self._data = self._data, None
            self._files.append(data.close())


def _write(path: Path, tree: Mapping[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(tree, file, indent=1, sort_keys=True, ensure_ascii=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(folder: Path, path: Path, *, replace: bool) -> Path:
    if replace and (there := newest(path.parent, path.name)) is not None and _same(folder, there):
        return there
    target = vacant(path.parent, path.name) if replace else path
    (folder / _OWNER).unlink()
    try:
        os.rename(folder, target)
    except OSError:
        if not (target / MANIFEST).is_file():
            raise
        return target  # The same identity was published meanwhile: the same bytes.
    _sync(path.parent)
    return target


def _same(built: Path, there: Path) -> bool:
    """Whether a store is as the one that was built, and whole."""
    try:
        manifest = (built / MANIFEST).read_bytes()
        if (there / MANIFEST).read_bytes() != manifest:
            return False
        return all(digest_file(there / entry["name"]) == entry["digest"] for entry in json.loads(manifest)["files"])
    except OSError:
        return False


def remove_abandoned(parent: Path) -> Sequence[Path]:
    """Remove the folders of writers that died; returns what was removed."""
    remove_gone(parent)
    now = time.time()
    removed = [folder for folder in sorted(parent.glob(f"{TEMPORARY}*")) if is_abandoned(folder, now)]
    for folder in removed:
        discard(folder)
    return removed


def is_abandoned(folder: Path, now: float) -> bool:
    """Whether the writer of a folder under construction is gone, as far as can be told.

    Args:
        folder: What it builds.
        now: The time.
    """
    try:
        if is_dead((folder / _OWNER).read_bytes()):
            return True
        silent = _SILENT_SECONDS  # Alive, or of another machine.
    except OSError:
        silent = _ABANDONED_SECONDS  # Too young to have an owner; or its writer died between giving that up and the rename.
    try:
        return now - max(path.stat().st_mtime for path in (folder, *folder.glob("*"))) > silent
    except OSError:
        return False  # It is being published or removed.
