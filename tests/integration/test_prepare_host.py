"""The token engine is loaded once for all workers; where it cannot be shared, every worker loads its own, to the same bytes."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from arrowtune.data import hosting
from arrowtune.data.config import SourceConfig
from arrowtune.data.pool import encode_by
from arrowtune.data.recipe import Recipe
from arrowtune.data.sources import resolve_source
from arrowtune.data.units import Scan
from arrowtune.errors import WorkerLost
from support.prepare import content, prepare, spec, write_big

SHIM = """
import importlib.machinery, importlib.util, os, sys, threading, time
from pathlib import Path

others = [path for path in sys.path if path != str(Path(__file__).parent)]
spec = importlib.machinery.PathFinder.find_spec("fastokens", others)
engine = sys.modules["fastokens"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(engine)
real = engine.Tokenizer

class Tokenizer:
    @staticmethod
    def from_file(path):
        with open(os.environ["LOADS"], "a") as file:
            file.write(f"{os.getpid()}\\n")
        if os.environ["STARTS"]:
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        return real.from_file(path)

engine.Tokenizer = Tokenizer
"""
"""A module in the place of the engine that notes who loads it, and may start a thread as it does."""

PROGRAM = """
import sys
from pathlib import Path
from arrowtune.data import hosting
from arrowtune.data.config import DataConfig, SourceConfig
from arrowtune.data.prepare import PrepareJob, prepare_sources
from support.assets import TINY
from support.prepare import spec
if sys.argv[3:]:
    hosting.start_ahead(str(TINY / "tokenizer.json"))
    assert hosting.waiting()
jobs = [PrepareJob(SourceConfig(path=sys.argv[1], limit=limit), f"rows{limit}", "train") for limit in (3000, 2000)]
for store in prepare_sources(jobs, spec(), DataConfig(), cache=Path(sys.argv[2]), workers=2):
    print(store.path)
assert not hosting.waiting()
"""


@pytest.fixture(autouse=True)
def _no_host_waits() -> Iterator[None]:
    hosting.end_all()
    yield
    hosting.end_all()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three units of rows."""
    return write_big(tmp_path_factory.mktemp("data") / "rows.jsonl", 10)


def loads(data: Path, folder: Path, *, starts_a_thread: bool = False, ahead: bool = False) -> tuple[list[Path], list[str]]:
    """Prepare two sources in a process of its own; the stores, and the processes that loaded the engine."""
    shim, log = folder / "shim", folder / "loads"
    shim.mkdir()
    (shim / "fastokens.py").write_text(SHIM)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(shim), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        "LOADS": str(log),
        "STARTS": "yes" if starts_a_thread else "",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(data), str(folder / "cache"), *(["ahead"] if ahead else [])],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.split()], log.read_text().split()


def started() -> list[Any]:
    """The processes of prepare that this one started."""
    return [process for process in multiprocessing.active_children() if process.name == "arrowtune-prepare"]


def test_one_process_loads_the_engine_for_all_workers_and_each_its_own_where_that_is_not_safe(data: Path, tmp_path: Path) -> None:
    for name in ("shared", "ahead", "own", "alone"):
        (tmp_path / name).mkdir()
    shared, by_host = loads(data, tmp_path / "shared")
    early, by_early_host = loads(data, tmp_path / "ahead", ahead=True)
    own, by_each = loads(data, tmp_path / "own", starts_a_thread=True)
    assert len(by_host) == len(by_early_host) == 1  # For both sources.
    assert len(set(by_each)) == 6  # For each source the host that found it could not be forked, and two workers.
    alone = prepare(data, tmp_path / "alone", workers=1, source={"limit": 3000}).store_path
    assert content(shared[0]) == content(early[0]) == content(own[0]) == content(alone)


def test_a_host_that_is_killed_is_an_error_that_names_the_unit(data: Path, tmp_path: Path) -> None:
    units = iter(Scan(resolve_source(SourceConfig(path=str(data)), "rows"), None))
    done = encode_by(2, Recipe(spec(), "messages", {}, tmp_path), units)
    next(done)
    (host,) = started()
    workers = [process for process in psutil.process_iter() if process.ppid() == host.pid]
    assert len(workers) == 2
    host.kill()
    with pytest.raises(WorkerLost, match=r"killed by SIGKILL while it worked on .* from line"):
        list(done)
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive


def test_a_continued_run_loads_nothing_that_it_does_not_need(data: Path, tmp_path: Path) -> None:
    recipe = Recipe(spec(), "messages", {}, tmp_path)
    source = resolve_source(SourceConfig(path=str(data)), "rows")
    first = sorted((unit.index, json.dumps(tally.to_json())) for unit, tally in encode_by(2, recipe, iter(Scan(source, None))))
    continued = encode_by(2, recipe, iter(Scan(source, None)))
    done = [next(continued)]
    assert len(started()) == 1  # One host: what it read started no thread.
    again = sorted((unit.index, json.dumps(tally.to_json())) for unit, tally in [*done, *continued])
    assert first == again
    assert len(first) == 3
