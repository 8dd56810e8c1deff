"""The launcher's end of its line to the ranks.

Every rank holds a connection to one Unix socket for as long as it lives. So the launcher learns of a dead rank at once, a rank
learns of a dead launcher at once (even after kill -9, and although ranks have sessions of their own), and results and
errors travel as objects instead of log lines.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, Literal

from arrowtune.errors import ArrowtuneError

GRACE_SECONDS = 5.0
"""How long the other ranks may take to end by themselves once one has failed."""

END = "end"
"""What the launcher sends to a rank that must exit now."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a rank ended.

    Attributes:
        rank: Which one.
        kind: `done` with the returned value, `stopped` by a signal with all the others, `left` by itself on a signal, `error`
            raised on purpose, `crash` for any other exception, `lost` where the connection broke first.
        value: What was returned, the exception, or for a lost rank its exit code (minus the signal) where it is known.
        expected: Whether the launcher had asked the rank to end before it was lost.
    """

    rank: int
    kind: Literal["done", "stopped", "left", "error", "crash", "lost"]
    value: Any = None
    expected: bool = False


class Hub:
    """Accepts the ranks, remembers how each ended, forwards signals to those that live.

    Args:
        listener: The socket; `folder` holds it and is private to this user.
    """

    def __init__(self, listener: Listener, folder: Path) -> None:
        self.folder = folder
        self.outcomes: list[Outcome] = []
        self.signals: list[int] = []
        self._listener = listener
        self._ranks: dict[int, tuple[int, Connection]] = {}
        self._ending = False
        self._timer: threading.Timer | None = None
        # Reentrant: a signal handler takes it on the main thread, which may be holding it.
        self._lock = threading.RLock()
        self._quiet = threading.Condition(self._lock)
        self._attended = 0

    @property
    def address(self) -> str:
        """Where ranks connect."""
        return str(self._listener.address)

    def forward(self, signum: int) -> None:
        """Send a signal to every rank that lives, and to those that have yet to start."""
        with self._lock:
            self.signals.append(signum)
            for pid, _ in self._ranks.values():
                _kill(pid, signum)

    def end(self) -> None:
        """Make every rank exit now."""
        with self._lock:
            self._ending = True
            for _, connection in self._ranks.values():
                _send_end(connection)

    def drain(self, seconds: float = 5.0) -> None:
        """Once the processes of all ranks are gone, wait until their last words are read."""
        with self._quiet:
            self._quiet.wait_for(lambda: self._attended == 0, seconds)

    def close(self) -> None:
        """End what still lives and let go of the socket."""
        if self._timer is not None:
            self._timer.cancel()
        self.end()
        self._listener.close()

    def serve(self) -> None:
        """Accept ranks until the hub is closed; each is read by a thread of its own."""
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            except EOFError:
                continue
            with self._lock:
                self._attended += 1
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: Connection) -> None:
        try:
            self._listen(connection)
        finally:
            connection.close()
            with self._quiet:
                self._attended -= 1
                self._quiet.notify_all()

    def _listen(self, connection: Connection) -> None:
        try:
            rank, pid = connection.recv()
        except (EOFError, OSError):
            return
        with self._lock:
            self._ranks[rank] = (pid, connection)
            for signum in self.signals:
                _kill(pid, signum)
        outcome = self._last_word(rank, pid, connection)
        with self._lock:
            self.outcomes.append(outcome)
            self._wind_up(outcome)
        with suppress(EOFError, OSError):
            connection.recv()  # Nothing follows but the end of the process.
        with self._lock:
            del self._ranks[rank]

    def _wind_up(self, outcome: Outcome) -> None:
        """After a first failure the ranks that are through end at once, the others when the grace is over.

        A rank leaves by itself only where no rank has anything to save: all end at once then, before any of them finds its
        peers gone.
        """
        if outcome.kind == "left":
            self.end()
        if outcome.kind in ("error", "crash", "lost") and self._timer is None:
            self._timer = threading.Timer(GRACE_SECONDS, self.end)
            self._timer.daemon = True
            self._timer.start()
        if self._timer is not None:
            through = {outcome.rank for outcome in self.outcomes}
            for rank, (_, connection) in self._ranks.items():
                if rank in through:
                    _send_end(connection)

    def _last_word(self, rank: int, pid: int, connection: Connection) -> Outcome:
        try:
            kind, value = connection.recv()
        except (EOFError, OSError):
            return Outcome(rank, "lost", _exit_code(pid), expected=self._ending)
        return Outcome(rank, kind, value)


@contextmanager
def open_hub() -> Iterator[Hub]:
    """A hub that listens for the time of the block."""
    base = tempfile.gettempdir()
    # The path of a Unix socket holds some 100 bytes.
    folder = Path(tempfile.mkdtemp(prefix="arrowtune-", dir=base if len(base) < 60 else "/tmp"))
    try:
        hub = Hub(Listener(str(folder / "hub"), family="AF_UNIX", backlog=64), folder)
        threading.Thread(target=hub.serve, daemon=True).start()
        try:
            yield hub
        finally:
            hub.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def forwarded_signals(hub: Hub) -> Iterator[None]:
    """Pass SIGTERM, SIGINT and SIGHUP on to the ranks, so that they save and end; the launcher then ends with them.

    A second signal reaches the ranks as well: there it means now.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A closed terminal is a wish to stop like any other; under nohup it is ignored already and stays so.
    wanted = {signal.SIGTERM: signal.SIGTERM, signal.SIGINT: signal.SIGINT, signal.SIGHUP: signal.SIGTERM}
    heard = {signum: sent for signum, sent in wanted.items() if signal.getsignal(signum) != signal.SIG_IGN}
    previous = {signum: signal.signal(signum, lambda got, _: hub.forward(wanted[signal.Signals(got)])) for signum in heard}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def cause(outcomes: list[Outcome]) -> Outcome | None:
    """The failure that the others followed from: the first rank that was lost or failed on purpose, else the first crash.

    A rank whose peer dies usually crashes in a collective a moment later; that is not the cause.
    """
    failures = [outcome for outcome in outcomes if outcome.kind in ("error", "crash", "lost") and not outcome.expected]
    first_hand = [outcome for outcome in failures if outcome.kind != "crash"]
    return next(iter(first_hand or failures), None)


def stopped(outcomes: list[Outcome]) -> ArrowtuneError | None:
    """What a rank that was stopped by a signal has to say, where the signal is why the run has ended.

    A clean stop of all ranks goes before one that left, and rank 0 before the others. A failure that was there first goes
    before both: elastic ends the peers of a failed rank with a signal too. Only a crash does not undo a clean stop.
    """
    ends = [outcome for outcome in outcomes if outcome.kind in ("stopped", "left")]
    if not ends:
        return None
    said = min(ends, key=lambda outcome: (outcome.kind != "stopped", outcome.rank))
    found = cause(outcomes)
    clean = found is not None and found.kind == "crash" and said.kind == "stopped"
    if found is not None and not clean and outcomes.index(found) < outcomes.index(ends[0]):
        return None
    last_words: ArrowtuneError = said.value
    return last_words


def _send_end(connection: Connection) -> None:
    with suppress(OSError):
        connection.send(END)


def _exit_code(pid: int) -> int | None:
    """How a child ended; it stays for elastic to be waited for. None where elastic was quicker."""
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except (ChildProcessError, AttributeError):  # Not every platform has waitid.
        return None
    if end is None:
        return None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def _kill(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)
