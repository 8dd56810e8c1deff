"""What `prepare` tells of itself while it works, and bars on stderr that show it."""

from __future__ import annotations

from collections.abc import Mapping
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
    """One bar for each source on stderr: bytes, rows/s, tokens/s, rows skipped, time left. A context manager.

    Where stderr is no terminal nothing is drawn but the notes.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

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
        self._tasks[source] = _Count(self._bars.add_task(source, total=size, speed=""))

    def advance(self, source: str, size: int, rows: int, tokens: int, skipped: Mapping[str, int]) -> None:
        """See `Progress.advance`."""
        count = self._tasks[source]
        count.rows, count.tokens, count.skipped = count.rows + rows, count.tokens + tokens, count.skipped + sum(skipped.values())
        elapsed = next((task.elapsed for task in self._bars.tasks if task.id == count.task), None) or 0.0
        self._bars.update(count.task, advance=size, speed=count.speed(elapsed))

    def end(self, source: str) -> None:
        """See `Progress.end`."""
        self._bars.remove_task(self._tasks.pop(source).task)

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        self._console.print(text, soft_wrap=True)


class _Count:
    """What one bar has counted."""

    def __init__(self, task: object) -> None:
        from rich.progress import TaskID

        assert isinstance(task, int)
        self.task = TaskID(task)
        self.rows = self.tokens = self.skipped = 0

    def speed(self, seconds: float) -> str:
        if seconds <= 0:
            return ""
        skipped = f", {self.skipped:,} skipped" if self.skipped else ""
        return f"{self.rows / seconds:,.0f} rows/s, {self.tokens / seconds:,.0f} tokens/s{skipped}"
