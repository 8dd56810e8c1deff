"""Progress for people, on stderr: aligned lines, and on a terminal a bar below them."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from arrowtune.track.config import TrackerConfig
from arrowtune.track.run import TrackedRun
from arrowtune.types import EvalStats, StepStats

_EVERY_STEP_UNTIL = 20
_SMOOTHING = 0.1


class ConsoleTracker:
    """Prints the first steps one by one, then about a hundred lines a run, and always the last one.

    Where stderr is a terminal a bar follows every step; elsewhere there are only the lines, without control characters.
    """

    def __init__(self, config: TrackerConfig, run: TrackedRun) -> None:
        self._run = run
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._seconds: float | None = None
        self._unprinted: StepStats | None = None
        if self._console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
            # Logs that go to stderr appear above the bar; stdout is the result of the command and is let alone.
            self._bar = Progress(*columns, console=self._console, redirect_stdout=False, transient=True)
            self._task = self._bar.add_task("", total=run.total_steps, completed=run.resume_step)
            self._bar.start()

    def train(self, stats: StepStats) -> None:
        """One optimizer step."""
        last = stats.seconds if self._seconds is None else self._seconds
        self._seconds = last + _SMOOTHING * (stats.seconds - last)
        self._unprinted = stats
        if self._bar is not None:
            speed = f"{compact(stats.tokens_per_second)} tokens/s"
            description = f"loss {number(stats.loss, '.4f')}  {speed}  ETA {duration(self._left(stats.step))}"
            self._bar.update(self._task, completed=stats.step, description=description)
        if self._due(stats.step):
            self._print_step()

    def evaluated(self, stats: EvalStats) -> None:
        """One evaluation set."""
        self._print_step()
        loss, tokens = number(stats.loss, ".4f"), compact(stats.trained_tokens)
        line = f"eval {stats.name}: loss {loss}  over {tokens} trained tokens  in {duration(stats.seconds)}"
        self._print(f"{self._head(stats.step)}  {line}", "cyan")

    def event(self, step: int, event: str, **fields: Any) -> None:
        """Something else that happened."""
        self._print_step()
        details = "  ".join(f"{name} {value}" for name, value in fields.items())
        line = f"{event}: {details}" if details else event
        self._print(f"{self._head(step)}  {line}", "yellow" if event in {"warning", "error"} else "dim")

    def close(self) -> None:
        """Print the last step if it was not, and take the bar away."""
        self._print_step()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _due(self, step: int) -> bool:
        first = step - self._run.resume_step == 1
        every = max(1, self._run.total_steps // 100)
        return first or step <= _EVERY_STEP_UNTIL or step % every == 0 or step >= self._run.total_steps

    def _print_step(self) -> None:
        if self._unprinted is not None:
            stats, self._unprinted = self._unprinted, None
            self._print(self._line(stats))

    def _print(self, line: str, style: str = "") -> None:
        # Text rather than a string: a path or a name in brackets is no markup. Long lines are left to the terminal.
        self._console.print(Text(line, style=style), soft_wrap=True)

    def _head(self, step: int) -> str:
        total = str(self._run.total_steps)
        return f"step {step:>{len(total)}}/{total}"

    def _line(self, stats: StepStats) -> str:
        positions = stats.tokens + stats.padding
        padding = 100 * stats.padding / positions if positions else 0.0
        return (
            f"{self._head(stats.step)}  loss {number(stats.loss, '8.4f')}  lr {number(stats.lr, '.2e')}"
            f"  grad norm {number(stats.grad_norm, '8.3f')}  {compact(stats.tokens_per_second):>6} tokens/s"
            f"  {compact(stats.trained_tokens):>6} trained  {padding:4.1f}% padding  ETA {duration(self._left(stats.step))}"
        )

    def _left(self, step: int) -> float:
        return max(0, self._run.total_steps - step) * (self._seconds or 0.0)


def number(value: float, form: str) -> str:
    """A number in a form; the width holds for what is not finite too."""
    return format(value, form if math.isfinite(value) else form.split(".")[0])


def compact(count: float) -> str:
    """A count in four or five characters: 950, 12.3k, 4.56M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:.0f}{unit}" if value >= 100 else f"{value:.1f}{unit}" if value >= 10 else f"{value:.2f}{unit}"
    return f"{count:.0f}"


def duration(seconds: float) -> str:
    """A time span with at most two units: 3.2s, 1m 05s, 2h 07m, 3d 04h."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours < 24 else f"{hours // 24}d {hours % 24:02d}h"
