"""Forking the workers of one source from their host, engine and first units included."""

from __future__ import annotations

import gc
import os
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait

from arrowtune.data.encode import UnitEncoder
from arrowtune.data.host import AHEAD_AT_FIRST
from arrowtune.data.memory import give_memory_back
from arrowtune.data.process import alone, die_with
from arrowtune.data.render import StillLoading
from arrowtune.data.worker import Held, attempt, encoder_of, serve


def fork_crew(recipe: bytes, pipes: Sequence[Connection], control: Connection, tell: Callable[[int, int], None]) -> bool:
    """Load, fork a worker for every pipe, and wait until all have ended.

    Args:
        recipe: What the workers do, pickled.
        pipes: Units in, tallies out; closed here.
        control: Of the host; closed in the workers.
        tell: Told of every worker that ends: its number and its wait status.

    Returns:
        Whether this process may fork. If not, nothing was done with the units.
    """
    encoder = encoder_of(recipe)
    held: list[deque[Held]] = [deque() for _ in pipes]
    _begin_while_loading(encoder, pipes, held)
    if not alone():
        return False
    gc.collect()
    gc.freeze()
    numbers = {_fork(number, pipes, control, encoder, held): number for number in range(len(pipes))}
    held.clear()
    del encoder
    # What the first units were would otherwise be there twice: here, and changed in the workers.
    give_memory_back()
    for pipe in pipes:
        pipe.close()
    while numbers:
        pid, status = os.wait()
        tell(numbers.pop(pid), status)
    return True


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
                held[number].append((unit, attempt(unit, encoder.begin)))
            except StillLoading:
                held[number].append((unit, None))
    if loading is not None:
        loading.join()
        encoder.loaded()


def _fork(number: int, pipes: Sequence[Connection], control: Connection, encoder: UnitEncoder, held: list[deque[Held]]) -> int:
    host = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        die_with(host)
        for other in (control, *pipes[:number], *pipes[number + 1 :]):
            other.close()  # Whoever waits for its end would wait for this process too.
        own = held[number]
        held.clear()
        serve(pipes[number], encoder, own)
        code = 0
    except BaseException:  # noqa: BLE001 - nothing of the host's may run in here
        traceback.print_exc()
    finally:
        os._exit(code)
