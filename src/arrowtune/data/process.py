"""How a process of prepare behaves: quiet, and gone when the process that started it is. Imports next to nothing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_ALLOCATOR_THREAD = "jemalloc_bg_thd"


def settle_in(parent: int) -> None:
    """Begin the life of a process that `parent` started. Before numpy is imported."""
    die_with(parent)
    # There is a worker for every core: threads of the token engines would only stand in each other's way.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # numpy starts a thread for every other core as it is imported, and a process with threads may not fork.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    # The terminal sends ^C to everyone; the parent ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def die_with(parent: int) -> None:
    """Ask the kernel to end this process with the one that started it; the first of them ends with the user's process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def alone() -> bool:
    """Whether this process has one thread, so that it may fork. One that was joined may take a moment to be gone."""
    for _ in range(1000):
        if len(_threads()) == 1:
            return True
        time.sleep(0.001)
    return False


def _threads() -> list[str]:
    """The names of this process's threads, less the one of Arrow's jemalloc, which sees to it round a fork."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            names.append((task / "comm").read_text().rstrip("\n"))
    return [name for name in names if name != _ALLOCATOR_THREAD]
