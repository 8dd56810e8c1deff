"""The bytes of a file as a stream of blocks: decompressed, without a byte order mark, digested as they pass."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa

from arrowtune.data.sources.local import SourceFile
from arrowtune.errors import SourceError
from arrowtune.fingerprint import FileState, hasher

BLOCK_BYTES = 1 << 20
_UTF8_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class _Passing(io.RawIOBase):
    """A raw file that digests and counts what is read from it."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        self.state = hasher()
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.state.update(data)
        self.count += len(data)
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


class Blocks:
    """One pass over a text file.

    Args:
        file: The file.

    Attributes:
        mark: Bytes of the byte order mark that was left out.
        consumed: Bytes of the file as stored that were read so far.
    """

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._raw = _Passing(file.state.path)
        self.mark = 0

    @property
    def consumed(self) -> int:
        return self._raw.count

    def digest(self) -> str:
        """The digest of the file as stored; valid once the stream has ended."""
        return self._raw.state.hexdigest()

    def close(self) -> None:
        """Let go of the file."""
        self._raw.close()

    def __iter__(self) -> Iterator[bytes]:
        """The blocks, none of them empty.

        Raises:
            SourceError: The file is damaged, is no UTF-8, or changed while it was read.
        """
        first = True
        for block in self._decompressed() if self._file.compression else self._plain():
            if first:
                block, first = self._without_mark(block), False
            if block:
                yield block
        if FileState.of(self._file.state.path) != self._file.state:
            raise changed(self._file.state.path)

    def _plain(self) -> Iterator[bytes]:
        while block := self._raw.read(BLOCK_BYTES):
            yield block

    def _decompressed(self) -> Iterator[bytes]:
        if self._file.state.size == 0:
            return
        try:
            with pa.CompressedInputStream(pa.PythonFile(self._raw, mode="r"), self._file.compression) as stream:
                while block := stream.read(BLOCK_BYTES):
                    yield block
        except OSError as error:
            raise SourceError(
                f"{self._file.state.path} is damaged or cut off after {self._raw.count} bytes: {error}",
                hint="fetch the file again; a compressed file is read whole or not at all",
            ) from None

    def _without_mark(self, block: bytes) -> bytes:
        if encoding := _OTHER_MARKS.get(block[:2]):
            raise SourceError(f"{self._file.state.path} is {encoding} text", hint="convert it to UTF-8")
        if block.startswith(_UTF8_MARK):
            self.mark = len(_UTF8_MARK)
            return block[self.mark :]
        return block


def changed(path: str) -> SourceError:
    """The error for a file that is written to while it is read."""
    return SourceError(f"{path} changed while it was read", hint="run again when nothing writes to it")
