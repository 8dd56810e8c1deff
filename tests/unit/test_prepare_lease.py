"""A lease is held by one at a time, outlives no process of its machine, and is taken from a holder that stays silent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from arrowtune.data.lease import Lease, Pace, born, is_held

PACE = Pace(refresh=10, stale=60, look=1)


class Time:
    """A clock that runs only while somebody waits; what else happens meanwhile is told by the second."""

    def __init__(self, events: Callable[[float], None] = lambda now: None) -> None:
        self.now = 0.0
        self._events = events

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self._events(self.now)


def waiter(path: Path, time: Time) -> Lease:
    """One who waits by a clock of its own."""
    return Lease(path, PACE, clock=time.clock, pause=time.pause)


def elsewhere(path: Path) -> None:
    """Make the lease look as if a process of another machine held it."""
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": "another"}))


def test_one_holds_it_and_the_next_has_it_when_it_is_released(tmp_path: Path) -> None:
    first = Lease(tmp_path / "lease")
    first.acquire()
    told: list[str] = []

    def work(now: float) -> None:
        if now == 300:
            first.release()
        elif now % 10 == 0:
            first.refresh()

    time = Time(work)
    second = waiter(tmp_path / "lease", time)
    second.acquire(told.append)
    assert time.now == 300
    assert told == [f"process {os.getpid()} on {socket.gethostname()}"]
    first.release()
    assert is_held(tmp_path / "lease")
    second.release()
    assert not list(tmp_path.iterdir())


def test_it_is_taken_from_a_silent_holder_after_a_minute_and_no_sooner(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    silent = Lease(path)
    silent.acquire()
    elsewhere(path)
    time = Time(lambda now: path.write_bytes(path.read_bytes() + b" ") if now == 30 else None)
    waiter(path, time).acquire()
    assert time.now == 30 + 60
    # Who wakes up again finds that it is not its own any more, and takes nothing away.
    before = path.read_bytes()
    assert not silent.refresh()
    silent.release()
    assert path.read_bytes() == before


@pytest.mark.parametrize("left", [b"", b"{", b"[]"], ids=["nothing", "torn", "no object"])
def test_a_lease_that_says_nothing_is_taken_after_a_minute(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "lease"
    path.write_bytes(left)
    assert is_held(path)
    time, told = Time(), list[str]()
    waiter(path, time).acquire(told.append)
    assert (time.now, told) == (60, ["another process"])


def test_of_two_who_take_it_over_one_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    Lease(path).acquire()
    elsewhere(path)
    slow_time, quick = Time(), waiter(path, Time())
    slow = waiter(path, slow_time)
    stale = path.read_bytes()
    quick.acquire()
    held = path.read_bytes()
    # The slow one saw the stale lease, and moves away what is there now.
    slow._take_from(stale)
    assert path.read_bytes() == held
    assert [entry.name for entry in tmp_path.iterdir()] == ["lease"]
    assert quick.refresh()


def test_a_dead_holder_of_this_machine_is_known_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    program = f"""
import sys
from pathlib import Path
from arrowtune.data.lease import Lease
lease = Lease(Path({str(path)!r}))
lease.acquire()
print("held", flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert not Lease(path).try_acquire()
    holder.send_signal(signal.SIGKILL)
    # A zombie holds nothing either: its parent has not waited for it yet.
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert not is_held(path)
    time = Time()
    waiter(path, time).acquire()
    assert time.now == 0
    holder.communicate()


def test_a_process_id_that_was_given_again_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    Lease(path).acquire()
    assert is_held(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "born": "long ago"}))
    assert not is_held(path)
    assert Lease(path).try_acquire()
    assert born(os.getpid())


TURNS = """
import sys
from pathlib import Path
from arrowtune.data.lease import Lease, Pace
folder = Path(sys.argv[1])
for turn in range(30):
    lease = Lease(folder / "lease", Pace(refresh=0.01, stale=30, look=0.001))
    lease.acquire()
    with lease.kept():
        # Whoever is alone reads what it wrote.
        (folder / "who").write_text(sys.argv[2])
        for _ in range(20):
            assert (folder / "who").read_text() == sys.argv[2]
"""


def test_processes_take_turns(tmp_path: Path) -> None:
    both = [subprocess.Popen([sys.executable, "-c", TURNS, str(tmp_path), name]) for name in ("one", "two")]
    assert [process.wait(timeout=100) for process in both] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["who"]


def test_it_is_changed_while_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    lease = Lease(path, Pace(refresh=0.001))
    lease.acquire()
    seen = set()
    with lease.kept():
        while len(seen) < 4:
            seen.add(path.read_bytes())
    assert len({len(words) for words in seen}) == 1
    assert not path.exists()


def test_a_disk_that_refuses_leaves_no_empty_lease(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Lease(tmp_path / "nowhere" / "lease").acquire()
