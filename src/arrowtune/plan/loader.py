"""A thread that stays ahead of the device. Its only state is the step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from arrowtune.plan.plan import Plan
from arrowtune.types import PlannedStep


class Loader:
    """Iterates over the steps of one rank, made by a thread a few steps ahead: packed once, read, and counted.

    An error of the thread is raised in the consumer, with its traceback, after the steps that were made before it.
    Use it as a context manager, or call `close`.

    Args:
        plan: The plan.
        rank: This rank.
        world: Number of ranks.
        start: First step, 0-based: resuming is starting here.
        stop: One past the last step; the end of the plan when None.
        ahead: How many finished steps may wait.
    """

    def __init__(self, plan: Plan, rank: int, world: int, start: int = 0, stop: int | None = None, *, ahead: int = 2) -> None:
        self._make: Callable[[int], PlannedStep] = lambda step: plan.rank_step(step, rank, world)
        self._steps = range(start, plan.steps if stop is None else stop)
        self._ahead = ahead
        self._ready: deque[PlannedStep] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._finished = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="arrowtune-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[PlannedStep]:
        return self

    def __next__(self) -> PlannedStep:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._finished or self._closed)
            if self._closed:
                raise StopIteration
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread and forget what waits. May be called twice, and never waits for a full queue.

        A read that hangs is left behind after some seconds: the thread is a daemon and ends with the process.
        """
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        try:
            for step in self._steps:
                if not self._offer(self._make(step)):
                    return
        except BaseException as error:  # noqa: BLE001
            # Raised again by __next__, in the thread that can do something about it.
            self._error = error
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()

    def _offer(self, item: PlannedStep) -> bool:
        """Queue a step once there is room; False when the loader was closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._ahead or self._closed)
            if self._closed:
                return False
            self._ready.append(item)
            self._changed.notify_all()
            return True
