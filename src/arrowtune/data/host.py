"""The host of workers: a process that loads the token engine once, and forks workers for one source after the other.

A token engine takes more than a second to load. The host loads it in a thread, often while the user's process still finds
out what there is to do; meanwhile it reads and renders the first units. The workers that it then forks share engine and
rendered units without a copy. Forking is safe while a process has one thread: an engine starts its own with the first text
that it encodes, and that happens in the workers.
"""

from __future__ import annotations

import contextlib
import os
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from threading import Thread

from arrowtune.data.fast import load_fast
from arrowtune.data.process import settle_in

AHEAD_AT_FIRST = 6
"""Units that are given for a worker while its engine is loading."""

CANNOT_FORK = "cannot fork"
"""What a host says, and ends, when something has started a thread in it."""


def main(control: Connection, ahead: str | None) -> None:
    """Fork a crew of workers for every message, until the other end closes.

    Args:
        control: Receives the number of a crew, its recipe and how many workers it has, then the pipe of each; tells
            `(crew, worker, wait status)` when one ended, or `CANNOT_FORK` before it ends itself.
        ahead: A tokenizer to load at once.
    """
    settle_in(os.getppid())
    if ahead is not None:
        Thread(target=_load, args=(ahead,), name="loading the token engine").start()
    # A third of a second, for which the engine that is loading does not wait.
    from arrowtune.data.crew import fork_crew

    while True:
        try:
            crew, recipe, count = control.recv()
            pipes = [Connection(recv_handle(control)) for _ in range(count)]
        except (EOFError, OSError):
            return

        def ended(worker: int, status: int, crew: int = crew) -> None:
            _tell(control, (crew, worker, status))

        if not fork_crew(recipe, pipes, control, ended):
            _tell(control, CANNOT_FORK)
            return


def _load(path: str) -> None:
    with contextlib.suppress(Exception):  # Whoever needs the engine meets the same again, and says so.
        load_fast(path)


def _tell(control: Connection, what: object) -> None:
    with contextlib.suppress(OSError):  # Nobody asks any more.
        control.send(what)
