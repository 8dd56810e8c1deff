"""Processes that encode units: light, watched, and gone when the parent is."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from arrowtune.data import hosting
from arrowtune.data.host import AHEAD_AT_FIRST, CANNOT_FORK
from arrowtune.data.recipe import Recipe
from arrowtune.data.report import Tally
from arrowtune.data.units import Unit
from arrowtune.errors import WorkerLost

AHEAD = 2
"""Units a worker holds: the one it works on, and the next."""

WORKER_MODULE = "arrowtune.data.worker"

Done = tuple[Unit, Tally]


def encode_here(recipe: Recipe, units: Iterator[Unit]) -> Iterator[Done]:
    """Encode units one after the other in this process.

    Raises:
        ArrowtuneError: What encoding raises.
    """
    from arrowtune.data.encoder import encoder_for

    encoder = encoder_for(recipe)
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
    crew = _Crew(workers, recipe)
    try:
        for unit in units:
            while crew.full():
                yield from crew.collect(block=True)
            yield from crew.collect(block=False)
            min(crew.workers, key=lambda worker: len(worker.held)).give(unit)
        while any(worker.held for worker in crew.workers):
            yield from crew.collect(block=True)
    finally:
        crew.stop()


@dataclass(slots=True)
class _Worker:
    pipe: Connection
    held: list[Unit] = field(default_factory=list)

    def give(self, unit: Unit) -> None:
        self.held.append(unit)
        with suppress(OSError):  # It is gone: its pipe says so when it is read.
            self.pipe.send(unit)


class _Crew:
    """Some workers, and the processes that they are or that started them."""

    def __init__(self, workers: int, recipe: Recipe) -> None:
        self._recipe = pickle.dumps(recipe)
        self._processes: list[BaseProcess] = []
        self._host: hosting.Host | None = None
        self._number = 0
        self._fates: dict[int, int] = {}
        self._ahead = AHEAD_AT_FIRST
        self.workers: list[_Worker] = []
        if hosting.possible():
            self._start_by_host(workers)
        else:
            self._start_alone(workers)

    def full(self) -> bool:
        """Whether every worker holds as much as it should."""
        return all(len(worker.held) >= self._ahead for worker in self.workers)

    def collect(self, *, block: bool) -> list[Done]:
        """What workers have finished; waits for at least one if `block`."""
        while True:
            busy: dict[Any, int] = {worker.pipe: number for number, worker in enumerate(self.workers) if worker.held}
            control = self._host and self._host.control
            ready = wait([*busy, *([control] if control else ())], timeout=None if block else 0)
            if control in ready:
                self._listen()
            elif ready or not block:
                return [self._take(busy[pipe]) for pipe in ready]

    def stop(self) -> None:
        """Let every process end: those that are idle by themselves."""
        for worker in self.workers:
            worker.pipe.close()
        if any(worker.held for worker in self.workers):
            for process in self._processes:
                process.terminate()
                process.join(timeout=10)
        elif self._host is not None:
            hosting.give_back(self._host)

    def _start_by_host(self, workers: int) -> None:
        pairs = [multiprocessing.Pipe() for _ in range(workers)]
        self._host = hosting.take()
        self._processes.append(self._host.process)
        self._number = self._host.engage(self._recipe, [theirs for _, theirs in pairs])
        for ours, theirs in pairs:
            theirs.close()
            self.workers.append(_Worker(ours))

    def _start_alone(self, workers: int) -> None:
        from arrowtune.data.worker import solo

        context = multiprocessing.get_context("forkserver")
        # The server imports the worker's modules once and forks: a worker starts in milliseconds, before any thread exists.
        forkserver.set_forkserver_preload([WORKER_MODULE])
        for _ in range(workers):
            ours, theirs = context.Pipe()
            self._processes.append(hosting.start_process(context, solo, theirs, self._recipe))
            self.workers.append(_Worker(ours))

    def _listen(self) -> None:
        """What the host has to say: how a worker ended, or that there will be none."""
        assert self._host is not None
        try:
            told = self._host.control.recv()
        except (EOFError, OSError):
            self._host = None
            return
        if told == CANNOT_FORK:
            waiting, self._host = self.workers, None
            self.workers = []
            self._start_alone(len(waiting))
            for old, new in zip(waiting, self.workers, strict=True):
                old.pipe.close()
                for unit in old.held:
                    new.give(unit)
            return
        crew, number, status = told
        if crew == self._number:  # Workers of the crew before may end while this one is at work.
            self._fates[number] = os.waitstatus_to_exitcode(status)

    def _take(self, number: int) -> Done:
        worker = self.workers[number]
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            raise self._lost(number) from None
        if isinstance(answer, BaseException):
            raise answer
        self._ahead = AHEAD
        return worker.held.pop(0), answer

    def _lost(self, number: int) -> WorkerLost:
        code = self._exit_code(number)
        what = self.workers[number].held[0]
        if code is None or code >= 0:
            return WorkerLost(
                f"a worker of prepare exited with code {code} while it worked on {what}", hint="see what it printed above"
            )
        return WorkerLost(
            f"a worker of prepare was killed by {signal.Signals(-code).name} while it worked on {what}",
            hint="the kernel kills a process when memory runs out: fewer data.workers need less; what is finished is kept",
        )

    def _exit_code(self, number: int) -> int | None:
        while self._host is not None and number not in self._fates and self._host.control.poll(5):
            self._listen()
        if number in self._fates:
            return self._fates[number]
        # The workers' own processes are the last ones; where a host forked them it is the only one.
        process = self._processes[max(number - len(self.workers), -len(self._processes))]
        process.join(timeout=5)
        return process.exitcode
