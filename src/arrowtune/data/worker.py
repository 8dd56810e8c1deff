"""What runs in the processes of `pool`: the workers, and a host that loads the token engine once and forks them.

A token engine takes more than a second to load. One process loads it in a thread, while it reads and renders the first
units; the workers that it then forks share engine and rendered units without a copy. Forking is safe while a process has
one thread: an engine starts its own with the first text that it encodes, and that happens in the workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from arrowtune.data.encode import Begun, UnitEncoder
from arrowtune.data.render import StillLoading
from arrowtune.data.report import Tally
from arrowtune.data.units import Unit
from arrowtune.errors import ArrowtuneError, WorkerLost

AHEAD = 2
"""Units a worker holds: the one it works on, and the next."""

AHEAD_AT_FIRST = 6
"""Units that are given for a worker while its engine is loading."""

CANNOT_FORK = "cannot fork"
"""What a host says, and ends, when something has started a thread in it."""

_UNITS_BETWEEN = 4
"""Units after which a worker gives freed memory back: more often costs more than the units' own work allows."""

_ALLOCATOR_THREAD = "jemalloc_bg_thd"

_M_ARENA_MAX = -8  # From malloc.h.

T = TypeVar("T")

Held = tuple[Unit, Begun | BaseException | None]
"""A unit that a host has taken for a worker: begun, failed, or untouched."""


def solo(pipe: Connection, recipe: bytes) -> None:
    """A worker that loads for itself: units in, tallies out, until the pipe closes."""
    _settle_in(os.getppid())
    _serve(pipe, UnitEncoder(pickle.loads(recipe)), deque())


def host(control: Connection, pipes: Sequence[Connection], recipe: bytes) -> None:
    """Load, fork a worker for every pipe, and tell through `control` how each ended: its number and its wait status."""
    _settle_in(os.getppid())
    encoder = UnitEncoder(pickle.loads(recipe))
    held: list[deque[Held]] = [deque() for _ in pipes]
    _begin_while_loading(encoder, pipes, held)
    if not _alone():
        control.send(CANNOT_FORK)
        return
    gc.collect()
    gc.freeze()
    numbers = {_fork(number, control, pipes, encoder, held): number for number in range(len(pipes))}
    held.clear()
    for pipe in pipes:
        pipe.close()
    while numbers:
        pid, status = os.wait()
        with contextlib.suppress(OSError):  # Nobody asks any more.
            control.send((numbers.pop(pid), status))


def _begin_while_loading(encoder: UnitEncoder, pipes: Sequence[Connection], held: Sequence[deque[Held]]) -> None:
    """Load the engine, and read and render what the workers are given first meanwhile."""
    loading = None
    while loading is None or loading.is_alive():
        hungry = [pipe for pipe, units in zip(pipes, held, strict=True) if len(units) < AHEAD_AT_FIRST]
        if not hungry:
            break
        for pipe in wait(hungry, 0.01 if loading else None):
            number = pipes.index(pipe)
            try:
                unit = pipes[number].recv()
            except (EOFError, OSError):
                return
            if loading is None and (encoder.found(unit) is not None or (loading := encoder.load()) is None):
                # A continued run, which may have nothing to encode at all; or nothing takes long here.
                held[number].append((unit, None))
                return
            try:
                held[number].append((unit, _attempt(unit, encoder.begin)))
            except StillLoading:
                held[number].append((unit, None))
    if loading is not None:
        loading.join()
        encoder.loaded()


def _fork(number: int, control: Connection, pipes: Sequence[Connection], encoder: UnitEncoder, held: list[deque[Held]]) -> int:
    host_pid = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        _die_with(host_pid)
        control.close()
        for other in range(len(pipes)):
            if other != number:
                pipes[other].close()
        own = held[number]
        held.clear()
        _serve(pipes[number], encoder, own)
        code = 0
    except BaseException:  # noqa: BLE001 - nothing of the host's may run in here
        traceback.print_exc()
    finally:
        os._exit(code)


def _serve(pipe: Connection, encoder: UnitEncoder, held: deque[Held]) -> None:
    give_back = _memory_returner()
    # Between two units nothing is left but cycles of the template engine: they are collected there, all at once.
    gc.disable()
    try:
        while True:
            unit, begun = held.popleft() if held else (pipe.recv(), None)
            pipe.send(_answer(encoder, unit, begun))
            del unit, begun
            give_back()
    except (EOFError, OSError):
        return


def _answer(encoder: UnitEncoder, unit: Unit, begun: Begun | BaseException | None) -> Tally | BaseException:
    if begun is None:
        return _attempt(unit, encoder.run)
    return begun if isinstance(begun, BaseException) else _attempt(unit, lambda unit: encoder.finish(unit, begun))


def _attempt(unit: Unit, work: Callable[[Unit], T]) -> T | BaseException:
    """What comes of a unit, or why nothing does: the parent raises it."""
    try:
        return work(unit)
    except StillLoading:
        raise
    except ArrowtuneError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the parent raises it, with the place
        return WorkerLost(f"a worker of prepare failed on {unit}: {type(error).__name__}: {error}")


def _settle_in(parent: int) -> None:
    _die_with(parent)
    # There is a worker for every core: threads of the token engines would only stand in each other's way.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for signum in (signal.SIGINT, signal.SIGTERM):
        # The terminal sends ^C to everyone; the parent ends its workers itself.
        signal.signal(signum, signal.SIG_IGN if signum == signal.SIGINT else signal.SIG_DFL)


def _memory_returner() -> Callable[[], None]:
    """What keeps a worker as small as its units are, however many it does; to be called after every unit."""
    pool, trim = pa.default_memory_pool(), None
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # A C library without these.
            # Not before the engine is loaded: the threads of a host would wait for each other's allocations.
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
            trim = ctypes.CDLL(None).malloc_trim
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


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process with the one that forked it; the first of them ends with the user's process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _alone() -> bool:
    """Whether this process has one thread. One that was joined may take a moment to be gone."""
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
