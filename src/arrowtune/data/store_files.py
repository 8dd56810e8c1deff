"""The files of a store under construction: they grow, digest themselves, and are made durable when they are closed."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowtune.fingerprint import digest_file, hasher

_HEADER = 128


class _Sink(io.RawIOBase):
    """A file that digests and counts what is written to it."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "wb")  # noqa: SIM115 - closed by its owner
        self.hash = hasher()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hash.update(data)
        written = self.file.write(data)
        self.size += written
        return written


class DataFile:
    """An Arrow IPC file under construction."""

    def __init__(self, path: Path, kind: pa.Schema) -> None:
        self._name = path.name
        self._sink = _Sink(path)
        self._rows = 0
        self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), kind)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._sink.size

    def append(self, batch: pa.RecordBatch) -> None:
        """Write a batch of the file's schema."""
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def close(self) -> dict[str, Any]:
        """End the file; its entry in the manifest."""
        try:
            self._writer.close()
            self._sink.file.flush()
            os.fsync(self._sink.file.fileno())
        finally:
            self._sink.file.close()
        return {"name": self._name, "size": self.size, "digest": self._sink.hash.hexdigest(), "rows": self._rows}


class ArrayFile:
    """A .npy file that grows: the header has a fixed size and is written last, when the length is known."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._path, self._dtype = path, dtype
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._file.write(bytes(_HEADER))
        self.rows = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        """Write values at the end."""
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self.rows += len(values)

    def close(self) -> dict[str, Any]:
        """End the file, once or again; its entry in the manifest."""
        if not self._file.closed:
            try:
                self._file.seek(0)
                self._file.write(_npy_header(self._dtype, self.rows))
                self._file.flush()
                os.fsync(self._file.fileno())
            finally:
                self._file.close()
        return {"name": self._path.name, "size": self._path.stat().st_size, "digest": digest_file(self._path), "rows": self.rows}


def _npy_header(dtype: np.dtype[Any], rows: int) -> bytes:
    text = f"{{'descr': '{dtype.newbyteorder('<').str}', 'fortran_order': False, 'shape': ({rows},), }}"
    body = text.encode().ljust(_HEADER - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body
