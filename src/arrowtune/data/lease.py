"""Whose turn it is: a file that its holder makes alone and keeps changing, on any file system, from any machine.

Nothing depends on a lease for being right. It keeps two processes from doing the same work at once, that is all: what they
write has names of its content and appears by one rename.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a lease is changed and looked at, in seconds.

    Attributes:
        refresh: Between two changes by its holder.
        stale: Without a change, by the clock of the one who waits, it counts as given up.
        look: Between two looks of one who waits.
    """

    refresh: float = 10.0
    stale: float = 60.0
    look: float = 0.5


USUAL = Pace()


class Lease:
    """The right to work somewhere, as long as the holder lives.

    Args:
        path: The file; its folder exists.
        pace: See `Pace`.
        clock: Seconds that only grow, for one who waits.
        pause: Lets so many seconds pass, for one who waits.
    """

    def __init__(
        self,
        path: Path,
        pace: Pace = USUAL,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.path, self._pace, self._clock, self._pause = path, pace, clock, pause
        self._token = secrets.token_hex(16)
        self._beats = 0

    def acquire(self, waits: Callable[[str], None] = lambda holder: None) -> None:
        """Wait until it is ours.

        Args:
            waits: Called once if another has it, with words for people on who that is.

        Raises:
            OSError: The folder cannot be written.
        """
        seen: bytes | None = None
        since, told = self._clock(), False
        while not self.try_acquire():
            found = _read(self.path)
            if found != seen:
                seen, since = found, self._clock()
            elif self._clock() - since >= self._pace.stale:
                self._take_from(found)
                continue
            if not told:
                waits(_who(found))
                told = True
            self._pause(self._pace.look)

    def try_acquire(self) -> bool:
        """Take it if nobody has it, or if who had it is a process of this machine that is gone.

        Raises:
            OSError: The folder cannot be written.
        """
        for _ in range(2):
            try:
                descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                found = _read(self.path)
                if not is_dead(found):
                    return False
                self._take_from(found)
                continue
            try:
                os.write(descriptor, self._words())
            except OSError:
                self.path.unlink()
                raise
            finally:
                os.close(descriptor)
            return True
        return False

    def refresh(self) -> bool:
        """Change it, so that those who wait see that its holder lives; whether it is still ours."""
        self._beats += 1
        try:
            if not self._ours():
                return False
            with open(self.path, "r+b", buffering=0) as file:
                file.write(self._words())
        except OSError:
            pass  # A full or absent disk: at worst somebody else does the work too.
        return True

    def release(self) -> None:
        """Give it up if it is still ours."""
        with contextlib.suppress(OSError):
            if self._ours():
                self.path.unlink()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep changing it from a thread, and give it up at the end."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(self._pace.refresh) and self.refresh():
                pass

        thread = threading.Thread(target=beat, name="arrowtune-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.release()

    def _ours(self) -> bool:
        return _holder(_read(self.path)).get("token") == self._token

    def _words(self) -> bytes:
        # Always as long: written over what was there in one go.
        words = {**this_process(), "host": socket.gethostname(), "token": self._token, "beat": f"{self._beats:012d}"}
        return json.dumps(words).encode() + b"\n"

    def _take_from(self, seen: bytes) -> None:
        """Move a lease out of the way that is given up. One who was quicker gets the new one back that was moved by mistake."""
        aside = self.path.with_name(f".tmp-{secrets.token_hex(8)}")
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, aside)
            if _read(aside) != seen:
                with contextlib.suppress(OSError):
                    os.link(aside, self.path)
            os.unlink(aside)


def is_held(path: Path) -> bool:
    """Whether somebody may hold a lease: only its absence, and the death of a process of this machine, say surely not."""
    found = _read(path)
    return path.exists() and not is_dead(found)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _holder(words: bytes) -> dict[str, object]:
    try:
        found = json.loads(words)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _who(words: bytes) -> str:
    holder = _holder(words)
    return f"process {holder['pid']} on {holder['host']}" if {"pid", "host"} <= holder.keys() else "another process"


def this_process() -> dict[str, object]:
    """What tells this process from every other, here and elsewhere, now and later."""
    pid = os.getpid()
    return {"machine": machine(), "pid": pid, "born": born(pid)}


def is_dead(words: bytes) -> bool:
    """Whether this machine knows that the process which wrote `this_process` as JSON is gone."""
    holder = _holder(words)
    pid = holder.get("pid")
    return holder.get("machine") == machine() and isinstance(pid, int) and born(pid) != holder.get("born")


@cache
def machine() -> str:
    """Names the set of process ids that this process sees: two that give the same name mean the same processes by them."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    import uuid  # Not Linux.

    return f"{uuid.getnode():012x}"


def born(pid: int) -> str:
    """When a process began, as far as the system says it: an id is given again, a birth is not. Empty if it is gone."""
    try:
        # The name in parentheses may hold anything; state and start time follow it.
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return _alive(pid)
    return "" if words[0] in b"ZX" else words[19].decode()


def _alive(pid: int) -> str:
    """What is known of a process without `/proc`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "alive"
