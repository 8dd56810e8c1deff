"""Processes that encode units: light, watched, and gone when the parent is."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from arrowtune.data.encode import Recipe, UnitEncoder
from arrowtune.data.report import Tally
from arrowtune.data.units import Unit
from arrowtune.data.warm import warm_up
from arrowtune.data.worker import AHEAD, AHEAD_AT_FIRST, CANNOT_FORK, host, solo
from arrowtune.errors import WorkerLost

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
        warm_up()
        self._context = multiprocessing.get_context("forkserver")
        self._recipe = pickle.dumps(recipe)
        self._processes: list[BaseProcess] = []
        self._control: Connection | None = None
        self._fates: dict[int, int] = {}
        self._ahead = AHEAD_AT_FIRST
        self.workers: list[_Worker] = []
        # Only Linux lets a forked worker end with the process that forked it.
        if sys.platform == "linux":
            self._start_host(workers)
        else:
            self._start_alone(workers)

    def full(self) -> bool:
        """Whether every worker holds as much as it should."""
        return all(len(worker.held) >= self._ahead for worker in self.workers)

    def collect(self, *, block: bool) -> list[Done]:
        """What workers have finished; waits for at least one if `block`."""
        while True:
            busy: dict[Any, int] = {worker.pipe: number for number, worker in enumerate(self.workers) if worker.held}
            ready = wait([*busy, *([self._control] if self._control else ())], timeout=None if block else 0)
            if self._control in ready:
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

    def _start_host(self, workers: int) -> None:
        pairs = [self._context.Pipe() for _ in range(workers)]
        self._control, theirs = self._context.Pipe()
        self._spawn(host, theirs, [pair[1] for pair in pairs], self._recipe)
        self.workers = [_Worker(pair[0]) for pair in pairs]

    def _start_alone(self, workers: int) -> None:
        for _ in range(workers):
            ours, theirs = self._context.Pipe()
            self._spawn(solo, theirs, self._recipe)
            self.workers.append(_Worker(ours))

    def _spawn(self, target: Any, *arguments: Any) -> None:
        process = self._context.Process(target=target, args=arguments, name="arrowtune-prepare", daemon=True)
        try:
            with _without_main():
                process.start()
        except (EOFError, OSError) as error:
            reason = "the server that they are forked from is gone" if isinstance(error, EOFError) else error.strerror
            raise WorkerLost(
                f"no worker of prepare could be started: {reason or error}",
                hint="run the command again; what is finished is kept",
            ) from None
        self._processes.append(process)
        for argument in arguments:
            for pipe in argument if isinstance(argument, list) else [argument]:
                if isinstance(pipe, Connection):
                    pipe.close()

    def _listen(self) -> None:
        """What the host has to say: how a worker ended, or that there will be none."""
        assert self._control is not None
        try:
            told = self._control.recv()
        except (EOFError, OSError):
            self._control = None
            return
        if told == CANNOT_FORK:
            waiting, self._control = self.workers, None
            self.workers = []
            self._start_alone(len(waiting))
            for old, new in zip(waiting, self.workers, strict=True):
                old.pipe.close()
                for unit in old.held:
                    new.give(unit)
        else:
            number, status = told
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
        while self._control is not None and number not in self._fates and self._control.poll(5):
            self._listen()
        if number in self._fates:
            return self._fates[number]
        # The workers' own processes are the last ones; where a host forked them it is the only one.
        process = self._processes[max(number - len(self.workers), -len(self._processes))]
        process.join(timeout=5)
        return process.exitcode


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
