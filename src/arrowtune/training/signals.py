"""SIGTERM and SIGINT end a run after the current step, with a checkpoint.

They are held back only while there is something to save, from the first step to the last save. Before and after, a signal
means now: it goes to whoever handled it before, and what was being done is done again by the next start.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

_SAME_WISH_SECONDS = 2.0
"""A scheduler that signals every process of a job reaches a rank twice, once through its launcher."""


class StopFlag:
    """Remembers the first signal that asked the run to stop."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._heard = 0.0
        self._previous: dict[signal.Signals, Any] = {}

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is None:
            self.signum, self._heard = signum, time.monotonic()
        elif time.monotonic() - self._heard > _SAME_WISH_SECONDS:
            # A second signal means now.
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)

    def hold(self) -> None:
        """Hold signals back from here on. Outside the main thread none arrive, and none are held."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {signum: signal.signal(signum, self) for signum in (signal.SIGTERM, signal.SIGINT)}

    def release(self) -> None:
        """Let signals through again."""
        previous, self._previous = self._previous, {}
        if threading.current_thread() is threading.main_thread():
            for signum, handler in previous.items():
                if handler is not None:  # It was not installed from Python, and cannot be from here.
                    signal.signal(signum, handler)

    def pass_on(self) -> None:
        """Let signals through again, the one that nobody has acted on yet first."""
        self.release()
        if self.signum is not None:
            signum, self.signum = self.signum, None
            signal.raise_signal(signum)
