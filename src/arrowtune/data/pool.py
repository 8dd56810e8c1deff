"""Worker processes that encode units: light, watched, and gone when the parent is."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

import pyarrow as pa

from arrowtune.data.encode import Recipe, UnitEncoder
from arrowtune.data.report import Tally
from arrowtune.data.units import Unit
from arrowtune.data.warm import warm_up
from arrowtune.errors import ArrowtuneError, WorkerLost

_AHEAD = 2
"""Units a worker holds: the one it works on, and the next."""

_UNITS_BETWEEN = 4
"""Units after which a worker gives freed memory back: more often costs more than the units' own work allows."""

_M_ARENA_MAX = -8  # From malloc.h.

Done = tuple[Unit, Tally]


def encode_here(recipe: Recipe, units: Iterator[Unit]) -> Iterator[Done]:
    """Encode units one after the other in this process.

    Raises:
        ArrowtuneError: What encoding raises.
    """
    encoder = UnitEncoder(recipe)
    for unit in units:
        yield unit, encoder.run(unit)


def encode_by(workers: int, recipe: Recipe, units: Iterator[Unit]) -> Iterator[Done]:
    """Encode units in worker processes, each taking the next one as it gets free.

    Args:
        workers: How many.
        recipe: What to do.
        units: Drawn only as fast as they are worked on.

    Yields:
        Every unit with its tally, in the order in which they are done.

    Raises:
        ArrowtuneError: What a worker raised.
        WorkerLost: A worker died; the message names what it was working on.
    """
    pool = _start(workers, recipe)
    try:
        for unit in units:
            yield from _collect(pool, block=all(len(worker.held) >= _AHEAD for worker in pool))
            worker = min(pool, key=lambda one: len(one.held))
            worker.give(unit)
        while any(worker.held for worker in pool):
            yield from _collect(pool, block=True)
    finally:
        for worker in pool:
            worker.stop()


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    held: list[Unit] = field(default_factory=list)

    def give(self, unit: Unit) -> None:
        try:
            self.pipe.send(unit)
        except OSError:
            raise self.lost() from None
        self.held.append(unit)

    def take(self) -> Done:
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            raise self.lost() from None
        if isinstance(answer, BaseException):
            raise answer
        return self.held.pop(0), answer

    def lost(self) -> WorkerLost:
        self.process.join(timeout=5)
        code = self.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"exited with code {code}"
        what = f" while it worked on {self.held[0]}" if self.held else ""
        return WorkerLost(
            f"a worker of prepare {how}{what}",
            hint="the kernel kills a process when memory runs out: fewer data.workers need less; what is finished is kept",
        )

    def stop(self) -> None:
        self.pipe.close()
        if self.held:
            self.process.terminate()
        self.process.join(timeout=10)


def _collect(pool: list[_Worker], *, block: bool) -> list[Done]:
    """What workers have finished; waits for at least one if `block`."""
    by_pipe: dict[Any, _Worker] = {worker.pipe: worker for worker in pool if worker.held}
    return [by_pipe[pipe].take() for pipe in wait(list(by_pipe), timeout=None if block else 0)]


def _start(workers: int, recipe: Recipe) -> list[_Worker]:
    warm_up()
    context = multiprocessing.get_context("forkserver")
    pool = []
    with _without_main():
        for number in range(workers):
            ours, theirs = context.Pipe()
            arguments = (theirs, pickle.dumps(recipe))
            process = context.Process(target=_work, args=arguments, name=f"arrowtune-prepare-{number}", daemon=True)
            process.start()
            theirs.close()
            pool.append(_Worker(process, ours))
    return pool


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


def _work(pipe: Connection, recipe: bytes) -> None:
    """A worker: units in, tallies out, until the pipe closes."""
    _die_with_parent()
    # There is a worker for every core: threads of the token engine would only stand in each other's way.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    give_back = _lean_memory()
    for signum in (signal.SIGINT, signal.SIGTERM):
        # The terminal sends ^C to everyone; the parent ends its workers itself.
        signal.signal(signum, signal.SIG_IGN if signum == signal.SIGINT else signal.SIG_DFL)
    encoder = UnitEncoder(pickle.loads(recipe))
    # Between two units nothing is left but cycles of the template engine: they are collected there, all at once.
    gc.disable()
    while True:
        try:
            unit = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Tally | BaseException = encoder.run(unit)
        except ArrowtuneError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - the parent raises it, with the place
            answer = WorkerLost(f"a worker of prepare failed on {unit}: {type(error).__name__}: {error}")
        try:
            pipe.send(answer)
        except OSError:
            return
        give_back()


def _lean_memory() -> Callable[[], None]:
    """Keep a worker as small as its units are, however many it does.

    Returns:
        What gives freed memory back to the system; to be called after every unit.
    """
    pool, trim = pa.default_memory_pool(), None
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        with contextlib.suppress(AttributeError):  # A C library without these.
            library.mallopt(_M_ARENA_MAX, 1)
            trim = library.malloc_trim

    done = 0

    def give_back() -> None:
        nonlocal done
        done += 1
        if done == 1:
            # The engines and the template stay for good: looking through them again would find nothing.
            gc.collect()
            gc.freeze()
        if done % _UNITS_BETWEEN:
            return
        gc.collect()
        pool.release_unused()
        if trim is not None:
            trim(0)

    return give_back


def _die_with_parent() -> None:
    """Ask the kernel to end this process with the server that forked it, which ends with the user's process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
