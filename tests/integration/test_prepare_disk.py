"""Disks that are full or read-only: one clear sentence, and what is finished is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.prepare import content, prepare, write_big

PROGRAM = """
import sys
from pathlib import Path
from arrowtune.errors import StoreError
from support.prepare import prepare, spec
data, cache, workers, length = sys.argv[1:]
try:
    print(prepare(Path(data), Path(cache), workers=int(workers), rendering=spec(max_length=int(length))).reused)
except StoreError as error:
    print(error.message)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two units of rows: some six megabytes of examples."""
    return write_big(tmp_path_factory.mktemp("data") / "rows.jsonl", 5)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Where a test mounts a file system of its own; skipped where no user may."""
    probe = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no user mount a tmpfs")
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def told(disk: Path, script: str) -> list[str]:
    """The lines that a shell script prints in which `$PREPARE` and `$DISK` stand for themselves."""
    program = disk.parent / "program.py"
    program.write_text(PROGRAM)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "PREPARE": f"{sys.executable} {program}",
        "DISK": str(disk),
    }
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("workers", [2])
def test_B47_a_disk_that_fills_up_keeps_what_is_finished(data: Path, disk: Path, tmp_path: Path, workers: int) -> None:
    script = (
        "mount -t tmpfs -o size=18m tmpfs $DISK; dd if=/dev/zero of=$DISK/other bs=1M count=8 2>/dev/null;"
        f"$PREPARE {data} $DISK/cache {workers} 2048; rm $DISK/other; mount -o remount,size=99m $DISK;"
        f"$PREPARE {data} $DISK/cache {workers} 2048; cp -r $DISK/cache/stores {tmp_path}/found"
    )
    assert told(disk, script) == [f"the cache folder {disk}/cache has no space left", "False"]
    [store] = (tmp_path / "found").iterdir()
    assert content(store) == content(prepare(data, tmp_path / "undisturbed").store_path)


def test_a_read_only_cache_serves_what_it_has(data: Path, disk: Path) -> None:
    script = (
        f"mount -t tmpfs tmpfs $DISK; $PREPARE {data} $DISK/cache 1 2048; mount -o remount,ro $DISK;"
        f"$PREPARE {data} $DISK/cache 1 2048; $PREPARE {data} $DISK/cache 1 99 "
    )
    assert told(disk, script) == ["False", "True", f"the cache folder {disk}/cache is read-only"]
