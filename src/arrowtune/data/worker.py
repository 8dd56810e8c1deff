"""What a worker of prepare does: units in, tallies out, in little memory however many there are."""

from __future__ import annotations

import gc
import os
import pickle
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from arrowtune.data.encode import Begun, UnitEncoder
from arrowtune.data.encoder import encoder_for
from arrowtune.data.memory import give_memory_back, one_arena
from arrowtune.data.process import settle_in
from arrowtune.data.render import StillLoading
from arrowtune.data.report import Tally
from arrowtune.data.units import Unit
from arrowtune.errors import ArrowtuneError, WorkerLost

_UNITS_BETWEEN = 2
"""Units after which a worker gives freed memory back: more often costs more than the units' own work allows."""

T = TypeVar("T")

Held = tuple[Unit, Begun | BaseException | None]
"""A unit that a host has taken for a worker: begun, failed, or untouched."""


def encoder_of(recipe: bytes) -> UnitEncoder:
    """What works by a recipe as it came through a pipe."""
    return encoder_for(pickle.loads(recipe))


def solo(pipe: Connection, recipe: bytes) -> None:
    """A worker that loads for itself: units in, tallies out, until the pipe closes."""
    settle_in(os.getppid())
    serve(pipe, encoder_of(recipe), deque())


def serve(pipe: Connection, encoder: UnitEncoder, held: deque[Held]) -> None:
    """Answer units until the pipe closes; first those that are held already."""
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
        return attempt(unit, encoder.run)
    return begun if isinstance(begun, BaseException) else attempt(unit, lambda unit: encoder.finish(unit, begun))


def attempt(unit: Unit, work: Callable[[Unit], T]) -> T | BaseException:
    """What comes of a unit, or why nothing does: the parent raises it."""
    try:
        return work(unit)
    except StillLoading:
        raise
    except ArrowtuneError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the parent raises it, with the place
        return WorkerLost(f"a worker of prepare failed on {unit}: {type(error).__name__}: {error}")


def _memory_returner() -> Callable[[], None]:
    """What keeps a worker as small as its units are, however many it does; to be called after every unit."""
    # Not before the engine is loaded: the threads of a host would wait for each other's allocations.
    one_arena()
    done = 0

    def give_back() -> None:
        nonlocal done
        done += 1
        if done == 1:
            # The engines and the template stay for good: looking through them again would find nothing.
            gc.collect()
            gc.freeze()
        if done % _UNITS_BETWEEN == 0:
            give_memory_back()

    return give_back
