"""Keeping a progress bar out of the way that its library shows whatever it is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import TextIO

_GGUF_BAR = "Converting and de-quantizing GGUF"


@contextmanager
def without_gguf_bar() -> Iterator[None]:
    """Everything else that is written to stderr gets there."""
    with redirect_stderr(_Filtered(sys.stderr)):  # type: ignore[type-var]  # It is one as far as anybody asks.
        yield


class _Filtered:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._in_bar = False

    def write(self, text: str) -> int:
        # The bar ends with blanks or a line end of its own.
        self._in_bar = _GGUF_BAR in text or (self._in_bar and not text.strip())
        return len(text) if self._in_bar else self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
