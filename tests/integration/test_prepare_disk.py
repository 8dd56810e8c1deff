"""Disks that fill up or are read-only: one sentence, nothing torn, and the work goes on when there is room again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.prepare import chats, content, prepare, spec, write_big, write_lines

FULL = """
mount -t tmpfs -o size={size} tmpfs cache
$PREPARE 2> first.txt; echo $? > first.code
find cache/stores -name manifest.json > torn.txt 2> /dev/null
mount -o remount,size=64m tmpfs cache
$PREPARE --json > second.json || exit 1
cp -r cache/stores kept && ls cache/units > units.txt
"""

READ_ONLY = """
mount -t tmpfs tmpfs cache && $PREPARE --json > first.json && mount -o remount,ro cache || exit 1
$PREPARE --json > second.json
$PREPARE data.max_length=99 2> third.txt; echo $? > third.code
"""

OWN = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]


@pytest.fixture(scope="module")
def can_mount() -> None:
    """Skip where no user may mount anything."""
    if subprocess.run([*OWN, "mount -t tmpfs tmpfs /mnt"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no user mount a tmpfs")


def write_run(folder: Path, data: Path) -> None:
    """A run whose cache is the folder `cache`."""
    source = {"train": [str(data)], "max_length": 256, "workers": 2, "cache_dir": "cache"}
    (folder / "run.yaml").write_text(json.dumps({"model": {"path": "tiny"}, "data": source}))
    (folder / "cache").mkdir()


def with_mounts(folder: Path, script: str) -> None:
    """Run a shell script that may mount file systems; `$PREPARE` stands for the command."""
    env = {**os.environ, "PREPARE": f"{sys.executable} -m arrowtune prepare run.yaml"}
    done = subprocess.run([*OWN, script], cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert done.returncode == 0, done.stderr


def stores(file: Path) -> list[dict[str, Any]]:
    """What `prepare --json` told."""
    return list(json.loads(file.read_text())["stores"])


@pytest.mark.usefixtures("can_mount")
@pytest.mark.parametrize("size", ["1m", "3m"], ids=["in a unit", "in the store"])
def test_B47_a_full_disk_is_told_and_what_is_finished_is_kept(tmp_path: Path, size: str) -> None:
    data = write_big(tmp_path / "rows.jsonl", 5)
    write_run(tmp_path, data)
    with_mounts(tmp_path, FULL.format(size=size))
    assert (tmp_path / "first.code").read_text() == "3\n"
    told = [line for line in (tmp_path / "first.txt").read_text().splitlines() if "cut to max_length" not in line]
    assert told[0].startswith("error: the cache folder cache")
    assert told[0].endswith("has no space left")
    assert told[1].startswith("  hint: free some space")
    assert len(told) == 2
    assert (tmp_path / "torn.txt").read_text() == ""
    [store] = stores(tmp_path / "second.json")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [store["identity"]]
    assert (tmp_path / "units.txt").read_text() == ""
    undisturbed = prepare(data, tmp_path / "roomy", rendering=spec(max_length=256))
    assert content(tmp_path / "kept" / store["identity"]) == content(undisturbed.store_path)


@pytest.mark.usefixtures("can_mount")
def test_a_read_only_cache_serves_what_it_has(tmp_path: Path) -> None:
    write_run(tmp_path, write_lines(tmp_path / "rows.jsonl", chats(20)))
    with_mounts(tmp_path, READ_ONLY)
    [first], [second] = stores(tmp_path / "first.json"), stores(tmp_path / "second.json")
    assert (first["reused"], second["reused"]) == (False, True)
    assert (tmp_path / "third.code").read_text() == "3\n"
    told = (tmp_path / "third.txt").read_text().splitlines()
    assert told == ["error: the cache folder cache is read-only", "  hint: choose a data.cache_dir that can be written"]
