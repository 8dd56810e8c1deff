"""Memory that a process has freed, and the system has not: the C library and Arrow keep it for later."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

_M_ARENA_MAX = -8  # From malloc.h.


def one_arena() -> None:
    """From now on let all threads allocate from one heap, so that there is one to be given back."""
    if mallopt := _of_the_c_library("mallopt"):
        mallopt(_M_ARENA_MAX, 1)


def give_memory_back() -> None:
    """Return to the system what is free."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    if trim := _of_the_c_library("malloc_trim"):
        trim(0)


def _of_the_c_library(name: str) -> Callable[..., Any] | None:
    """A function that only glibc has."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
