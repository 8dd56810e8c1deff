"""The life of one rank that `launch.local` started."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, TextIO

from arrowtune.errors import ArrowtuneError, BackendError, Interrupted, WorkerLost
from arrowtune.launch.devices import share_cores
from arrowtune.launch.hub import END

PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGTERM, signal.SIGINT)
_END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Task:
    """What every rank is told.

    Attributes:
        address: The launcher's hub.
        launcher: The launcher's process id.
        entry: `module:function`, called with `payload`.
        payload: Pickled.
        logs: Folder for `rank-N.log`, or None.
    """

    address: str
    launcher: int
    entry: str
    payload: bytes
    logs: Path | None


def run_rank(task: Task) -> None:
    """Run the task as the rank that the environment names, and tell the launcher how it ended."""
    rank = int(os.environ["RANK"])
    _die_with(task.launcher)
    _own_session()
    log = _open_log(task.logs, rank) if task.logs else None
    line = Client(task.address, family="AF_UNIX")
    threading.Thread(target=_watch, args=(line,), daemon=True).start()
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        # The launcher answers with the signals it has had so far, so from here on they may come.
        line.send((rank, os.getpid()))
        for signum in _STOPS:
            signal.signal(signum, lambda got, _: _stop_here(line, got))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        share_cores(int(os.environ["LOCAL_WORLD_SIZE"]))
        value = resolve_entry(task.entry)(pickle.loads(task.payload))
        _say(line, "done", value if rank == 0 else None)
    except Interrupted as error:
        _say(line, "stopped", error)
    except ArrowtuneError as error:
        _say(line, "error", error)
        _leave()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the launcher must hear of it
        traceback.print_exc()
        _say(line, "crash", crash(rank, error, log))
        _leave()


def resolve_entry(entry: str) -> Callable[[Any], Any]:
    """The function that `module:function` names."""
    module, _, name = entry.partition(":")
    function: Callable[[Any], Any] = getattr(import_module(module), name)
    return function


def crash(rank: int, error: BaseException, log: Path | None) -> WorkerLost:
    """An exception nobody foresaw, as one sentence."""
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return WorkerLost(f"rank {rank} failed: {reason}", hint=f"its traceback is in {log}" if log else "its traceback is above")


def _stop_here(line: Connection, signum: int) -> None:
    """Leave at once, in the middle of whatever is being done; while steps are trained the trainer holds signals back.

    Not by an exception: the code of a model, or a library it imports, may catch those. There is nothing to unwind either, since
    locks and private stores are the launcher's. The launcher then ends all ranks at once; this one stays until it does, so that
    those in a collective do not find it broken first.
    """
    name = signal.Signals(signum).name
    _say(line, "left", Interrupted(signum, f"stopped by {name}; what was finished is kept, and the same command continues"))
    time.sleep(_END_SECONDS)
    _leave()


def _say(line: Connection, kind: str, value: Any) -> None:
    # From here on the rank is ending anyway, and a signal must not make that a failure.
    for signum in _STOPS:
        signal.signal(signum, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        line.send((kind, value))
    except OSError:
        _leave()
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        line.send(("error", BackendError(f"the {kind} value of a rank cannot be sent to its launcher: {error}")))


def _leave() -> None:
    """Exit at once: destructors of process groups wait for peers that may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _watch(line: Connection) -> None:
    """Exit as soon as the launcher is gone, or says so."""
    try:
        while line.recv() != END:
            pass
    except (EOFError, OSError):
        pass
    os._exit(1)


def _die_with(launcher: int) -> None:
    """Have the kernel kill this process when its parent ends. Only Linux can; elsewhere the hub alone sees to it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)


def _own_session() -> None:
    """Leave the terminal's foreground group: Ctrl-C must reach a rank once, through the launcher, not twice."""
    with suppress(PermissionError):  # The process leads a group of its own already.
        os.setsid()


def _open_log(folder: Path, rank: int) -> Path:
    """Write everything that this rank prints to its log. Rank 0 speaks for the run and keeps the terminal too."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{rank}.log"
    log = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
    sys.stdout.flush()
    sys.stderr.flush()
    if rank == 0:
        os.dup2(2, 1)  # The launcher's stdout is for results.
        sys.stderr = Tee(sys.stderr, log)
        sys.stdout = sys.stderr
    else:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(line_buffering=True)
    faulthandler.enable(log)
    return path


class Tee:
    """A text stream that writes to a terminal and copies what is not screen painting to a log."""

    _STYLE = re.compile(r"\x1b\[[0-9;]*m")

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        """Write to both; a progress bar that redraws itself only goes to the terminal."""
        plain = self._STYLE.sub("", text)
        if "\x1b[" not in plain and "\r" not in plain:
            self._log.write(plain)
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush both."""
        self._log.flush()
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
