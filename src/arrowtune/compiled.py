"""Compilation of the few loops that numpy cannot express. Without numba the same functions run as they are written."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` with numba at its first call, and keep the machine code on disk where a cache can be written.

    numba is imported only then: it takes longer to load than most commands take to answer.
    """
    build = functools.cache(lambda: _compile(function))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return build()(*args, **kwargs)

    return call


@functools.cache
def can_compile() -> bool:
    """Whether numba is installed; looks for it without loading it."""
    return find_spec("numba") is not None


def compiles() -> bool:
    """Whether numba has been loaded, for this or for something else."""
    return "numba" in sys.modules


def _compile(function: Callable[P, R]) -> Callable[P, R]:
    try:
        import numba
    except ImportError:
        return function
    try:
        fast: Callable[P, R] = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # numba refuses cache=True where neither the package nor the user's cache folder can be written.
        fast = numba.njit(nogil=True)(function)
    return fast
