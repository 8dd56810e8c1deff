"""What `prepare` tells of itself while it works, and bars on stderr that show it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self


class Progress(Protocol):
    """Told of long work as it goes on."""

    def begin(self, source: str, size: int) -> None:
        """A source of `size` bytes is being prepared."""
        ...

    def advance(self, source: str, size: int, rows: int, tokens: int, skipped: Mapping[str, int]) -> None:
        """More of it is done: bytes, rows read, tokens, and rows skipped by reason, each since the last call."""
        ...

    def end(self, source: str) -> None:
        """It is done."""
        ...

    def note(self, text: str) -> None:
        """One sentence worth reading."""
        ...


class Silent:
    """Tells nobody."""

    def begin(self, source: str, size: int) -> None: ...

    def advance(self, source: str, size: int, rows: int, tokens: int, skipped: Mapping[str, int]) -> None: ...

    def end(self, source: str) -> None: ...

    def note(self, text: str) -> None: ...


class Bars:
    """One bar for each source on stderr: bytes, rows/s, tokens/s, rows skipped by reason, time left. A context manager.

    Where stderr is no terminal there is a plain line now and then instead.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._clock = clock
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._bars = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TextColumn("{task.fields[speed]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, _Count] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()

    def begin(self, source: str, size: int) -> None:
        """See `Progress.begin`."""
        self._tasks[source] = _Count(self._bars.add_task(source, total=size, speed=""), size, self._clock())

    def advance(self, source: str, size: int, rows: int, tokens: int, skipped: Mapping[str, int]) -> None:
        """See `Progress.advance`."""
        count, now = self._tasks[source], self._clock()
        count.add(size, rows, tokens, skipped)
        if self._console.is_terminal:
            self._bars.update(count.task, advance=size, speed=count.speed(now))
        elif now - count.told >= _LINE_SECONDS:
            count.told = now
            self.note(f"{source}: {count.line(now)}")

    def end(self, source: str) -> None:
        """See `Progress.end`."""
        self._bars.remove_task(self._tasks.pop(source).task)

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        self._console.print(text, soft_wrap=True)


_LINE_SECONDS = 30.0
_REASONS = 3


class _Count:
    """What one bar has counted."""

    def __init__(self, task: int, size: int, now: float) -> None:
        from rich.progress import TaskID

        self.task = TaskID(task)
        self.told = self._began = now
        self._size, self._done = size, 0
        self._rows = self._tokens = 0
        self._skipped: Counter[str] = Counter()

    def add(self, size: int, rows: int, tokens: int, skipped: Mapping[str, int]) -> None:
        self._done, self._rows, self._tokens = self._done + size, self._rows + rows, self._tokens + tokens
        self._skipped.update(skipped)

    def speed(self, now: float) -> str:
        """Rows and tokens a second, and what was skipped."""
        seconds = now - self._began
        if seconds <= 0:
            return ""
        return f"{self._rows / seconds:,.0f} rows/s, {self._tokens / seconds:,.0f} tokens/s{self._skips()}"

    def line(self, now: float) -> str:
        """The same with how far it is and what is left."""
        share = self._done / self._size if self._size else 1.0
        left = (now - self._began) * (1 / share - 1) if share else 0.0
        return f"{share:.0%}, {self.speed(now)}, {timedelta(seconds=round(left))} left"

    def _skips(self) -> str:
        if not self._skipped:
            return ""
        most = ", ".join(f"{count:,} {reason}" for reason, count in self._skipped.most_common(_REASONS))
        more = " and more" if len(self._skipped) > _REASONS else ""
        return f", {self._skipped.total():,} skipped ({most}{more})"
