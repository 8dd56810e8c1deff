"""A prepare that is killed at any moment continues, and gives the bytes of an undisturbed one; nothing hangs or stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from arrowtune.data.config import SourceConfig
from arrowtune.data.encode import UnitEncoder
from arrowtune.data.recipe import Recipe
from arrowtune.data.sources import resolve_source
from arrowtune.data.store import Store
from arrowtune.data.unit_file import read_tally, unit_file
from arrowtune.data.units import Scan
from support.prepare import chat, content, prepare, spec, write_big, write_lines

PROGRAM = """
import json, sys
from pathlib import Path
from arrowtune.errors import ArrowtuneError
from arrowtune.data.lease import Pace
from support.prepare import prepare
try:
    pace = Pace(**json.loads(sys.argv[3]))
    print(json.dumps(prepare(Path(sys.argv[1]), Path(sys.argv[2]), workers=2, pace=pace).to_json()))
except ArrowtuneError as error:
    print(type(error).__name__, error.message, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def start(data: Path, cache: Path, **pace: float) -> subprocess.Popen[str]:
    """Prepare in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(data), str(cache), json.dumps(pace)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )


def wait_until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> bool:
    """Wait for a moment of the process's life; False if it ended before."""
    while process.poll() is None:
        if reached():
            return True
        time.sleep(0.002)
    return False


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four units of rows."""
    return write_big(tmp_path_factory.mktemp("data") / "rows.jsonl", 14)


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The store as it is when nothing happens."""
    return content(prepare(data, tmp_path_factory.mktemp("cache"), workers=2).store_path)


def test_B47_killed_again_and_again_it_gives_the_bytes_of_an_undisturbed_run(
    data: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    def units() -> int:
        return len(list(tmp_path.glob("units/*/[!.]*.arrow")))

    moments: list[Callable[[], bool]] = [
        lambda: (tmp_path / "units").exists(),
        lambda: any(tmp_path.glob("units/*/.tmp-*")),
        lambda: units() >= 1,
        lambda: units() >= 2,
        lambda: any(tmp_path.glob("stores/.tmp-*/data-*")),
    ]
    kept = 0
    for moment in moments:
        process = start(data, tmp_path)
        killed = wait_until(process, moment)
        assert killed, process.communicate()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert not [path for path in tmp_path.glob("stores/*") if not path.name.startswith(".tmp-")]
        assert units() >= kept
        kept = units()
    assert kept == 4
    prepared = prepare(data, tmp_path, workers=2)
    assert content(prepared.store_path) == undisturbed
    assert [path.name for path in (tmp_path / "stores").iterdir()] == [prepared.identity]
    assert not list((tmp_path / "units").iterdir())


def killed_everywhere(folder: Path, every: int, workers: int = 1) -> dict[str, int]:
    """Kill a prepare at every so many-th thing that it does to its cache; how far it had come each time."""
    done = subprocess.run(
        [sys.executable, "-m", "support.killed_prepare", str(folder), str(every), str(workers)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


STAGES = {"begun", "encoding", "merging", "published", "done"}


def test_B47_killed_at_some_moments_up_to_the_last_one(tmp_path: Path) -> None:
    assert {"encoding", "merging", "published", "done"} <= set(killed_everywhere(tmp_path, 11)) <= STAGES


@pytest.mark.slow
@pytest.mark.parametrize(("every", "workers"), [(1, 1), (3, 2)])
def test_B47_killed_at_every_moment(tmp_path: Path, every: int, workers: int) -> None:
    seen = killed_everywhere(tmp_path, every, workers)
    assert set(seen) == STAGES
    assert sum(seen.values()) > 50 // every


@pytest.mark.slow
@pytest.mark.parametrize("units", range(4))
@pytest.mark.parametrize("which", range(4))
def test_B47_any_process_of_it_killed_at_any_time(
    data: Path, undisturbed: dict[str, bytes], tmp_path: Path, units: int, which: int
) -> None:
    process = start(data, tmp_path)

    def victims() -> list[psutil.Process]:
        return psutil.Process(process.pid).children(recursive=True)

    def begun() -> bool:
        return len(list(tmp_path.glob("units/*/[!.]*.arrow"))) >= units and len(victims()) > which

    if wait_until(process, begun):
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            victims()[which].kill()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0 or (process.returncode == 4 and told.startswith("WorkerLost ")), told
    prepared = prepare(data, tmp_path, workers=2)
    assert content(prepared.store_path) == undisturbed
    assert [path.name for path in (tmp_path / "stores").iterdir()] == [prepared.identity]
    assert not list((tmp_path / "units").iterdir())


def test_B50_a_killed_worker_is_an_error_at_once_that_names_its_unit(data: Path, tmp_path: Path) -> None:
    process = start(data, tmp_path)
    victims: list[psutil.Process] = []

    def begun() -> bool:
        victims[:] = [worker for host in psutil.Process(process.pid).children() for worker in host.children()]
        return len(victims) == 2

    assert wait_until(process, begun)
    victims[0].send_signal(signal.SIGKILL)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 4
    assert told.startswith("WorkerLost a worker of prepare was killed by SIGKILL while it worked on ")
    assert f"{data} from line " in told


def test_B50_workers_start_after_the_parent_has_tokenised_and_take_long_rows(tmp_path: Path) -> None:
    long = "the quick brown fox jumps over the lazy dog " * 9_000
    few = write_lines(tmp_path / "few.jsonl", [chat("a", "b"), *[chat(f"{k}", f"{k} {long}") for k in range(2)]])
    many = write_lines(tmp_path / "many.jsonl", [chat(f"question {k}", f"{k} {long}") for k in range(42)])
    program = PROGRAM.replace("try:", "prepare(Path(sys.argv[4]), Path(sys.argv[2]), workers=1)\ntry:").replace(
        "workers=2", "workers=8"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(many), str(tmp_path / "cache"), "{}", str(few)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 42
    assert len(Store(json.loads(done.stdout)["path"])[41].input_ids) == 2048


def test_nothing_outlives_a_killed_parent(data: Path, tmp_path: Path) -> None:
    process = start(data, tmp_path)
    children: list[psutil.Process] = []

    def begun() -> bool:
        children[:] = psutil.Process(process.pid).children(recursive=True)
        return any(tmp_path.glob("units/*/*.arrow"))

    assert wait_until(process, begun)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_two_at_once_do_the_work_once(data: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    both = [start(data, tmp_path) for _ in range(2)]
    told = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    stores = [json.loads(out) for out, _ in told]
    assert sorted(store["reused"] for store in stores) == [False, True]
    assert stores[0]["path"] == stores[1]["path"]
    assert content(Path(stores[0]["path"])) == undisturbed


def test_two_that_do_not_know_of_each_other_corrupt_nothing(data: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    # Each takes the other for dead at first sight, as if both had been asleep.
    both = [start(data, tmp_path, stale=0, look=0.001) for _ in range(2)]
    told = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    for out, _ in told:
        assert content(Path(json.loads(out)["path"])) == undisturbed
    assert len(list((tmp_path / "stores").iterdir())) == 1
    assert not list((tmp_path / "units").iterdir())


def test_who_waits_takes_over_from_a_process_that_is_stopped(data: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    stopped = start(data, tmp_path)
    assert wait_until(stopped, lambda: any(tmp_path.glob("units/*/[!.]*.arrow")))
    os.killpg(stopped.pid, signal.SIGSTOP)
    waiting = start(data, tmp_path, stale=0.5, look=0.01)
    out, told = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, told
    os.killpg(stopped.pid, signal.SIGCONT)
    late, told = stopped.communicate(timeout=120)
    assert stopped.returncode == 0, told
    stores = [json.loads(out), json.loads(late)]
    assert [store["reused"] for store in stores] == [False, True]
    assert content(Path(stores[0]["path"])) == undisturbed == content(Path(stores[1]["path"]))


def written(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written again; reading it may move its access time."""
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def test_a_finished_unit_is_not_made_again_and_a_torn_one_is(data: Path, tmp_path: Path) -> None:
    unit = next(iter(Scan(resolve_source(SourceConfig(path=str(data)), "rows"), None, size=100_000)))
    encoder = UnitEncoder(Recipe(spec(), "messages", {}, tmp_path))
    tally = encoder.run(unit)
    path = unit_file(tmp_path, unit)
    before, whole = written(path), path.read_bytes()
    assert encoder.run(unit) == tally
    assert written(path) == before
    path.write_bytes(whole[:-100])
    assert read_tally(tmp_path, unit) is None
    assert encoder.run(unit) == tally
    assert path.read_bytes() == whole
