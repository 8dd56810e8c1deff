"""The host process of workers, as the user's process sees it: started ahead of time, lent to one crew at a time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import current_process
from multiprocessing.reduction import send_handle
from types import ModuleType
from typing import Any

from arrowtune.data.host import main
from arrowtune.errors import WorkerLost


class Host:
    """A running host.

    Args:
        ahead: The `tokenizer.json` that it loads at once.

    Raises:
        WorkerLost: No process can be started.
    """

    def __init__(self, ahead: str | None = None) -> None:
        self._owner = os.getpid()
        self._crews = 0
        self.control, theirs = multiprocessing.Pipe()
        # It forks, so it must come of a process that has no threads: a new one.
        self.process = start_process(multiprocessing.get_context("spawn"), main, theirs, ahead)

    def usable(self) -> bool:
        """Whether this process may give it a crew: it is alive, and no parent's."""
        return self._owner == os.getpid() and self.process.is_alive()

    def engage(self, recipe: bytes, pipes: Sequence[Connection]) -> int:
        """Have a worker forked for every pipe.

        Returns:
            The number of the crew, which the host tells of its workers with.
        """
        self._crews += 1
        with contextlib.suppress(OSError):  # It is gone: the workers' pipes say so when they are read.
            self.control.send((self._crews, recipe, len(pipes)))
            for pipe in pipes:
                send_handle(self.control, pipe.fileno(), self.process.pid)
        return self._crews

    def end(self) -> None:
        """Let it go, in the middle of what it does."""
        self.control.close()
        self.process.terminate()


_idle: list[Host] = []
"""The host that nobody uses; at most one."""


def start_ahead(tokenizer_json: str) -> None:
    """Start a host that loads this tokenizer at once, for a source that is about to be prepared."""
    if possible() and not waiting():
        _idle.append(Host(tokenizer_json))


def possible() -> bool:
    """Whether this process can have a host: only Linux lets a forked worker end with the process that forked it."""
    return sys.platform == "linux" and not current_process().daemon


def waiting() -> bool:
    """Whether a host was started and is not used."""
    return any(host.usable() for host in _idle)


def take() -> Host:
    """The host that waits, else a new one.

    Raises:
        WorkerLost: No process can be started.
    """
    while _idle:
        if (host := _idle.pop()).usable():
            return host
    return Host()


def give_back(host: Host) -> None:
    """A host whose crew has ended: its engine is there for the next source."""
    if waiting():
        host.end()
    else:
        _idle.append(host)


def end_all() -> None:
    """Let go of the host that waits: there is nothing more to prepare."""
    while _idle:
        if (host := _idle.pop()).usable():
            host.end()


def start_process(context: Any, target: Any, *arguments: Any) -> Any:
    """Start a process of prepare; the pipes among its arguments are closed here.

    Raises:
        WorkerLost: It cannot be started.
    """
    process = context.Process(target=target, args=arguments, name="arrowtune-prepare", daemon=True)
    try:
        with _without_main(), _without_interrupts():
            process.start()
    except (EOFError, OSError) as error:
        reason = "the server that they are forked from is gone" if isinstance(error, EOFError) else error.strerror
        raise WorkerLost(
            f"no worker of prepare could be started: {reason or error}",
            hint="run the command again; what is finished is kept",
        ) from None
    for argument in arguments:
        if isinstance(argument, Connection):
            argument.close()
    return process


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep multiprocessing from importing the user's script again in every worker: workers need nothing of it.

    So a script without a main guard, a REPL and `python -c` all work.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A new process inherits what is blocked: a ^C does not end it before it can ignore that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
