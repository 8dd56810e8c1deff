"""Loading the fast token engine: once per process, and in whichever thread asks first. Imports next to nothing."""

from __future__ import annotations

import os
from functools import lru_cache
from threading import Lock
from typing import Any

_ONE_AT_A_TIME = Lock()


def load_fast(path: str) -> Any:
    """The engine of a `tokenizer.json`; it takes more than a second where it was not loaded before.

    Raises:
        ImportError: The package is not installed.
        OSError: The file is not there.
        Exception: The engine refuses tokenizers that it does not know, each in its own way.
    """
    state = os.stat(path)
    with _ONE_AT_A_TIME:
        return _load(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1)
def _load(path: str, size: int, changed: int) -> Any:
    import fastokens

    return fastokens.Tokenizer.from_file(path)
