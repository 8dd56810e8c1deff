"""A disk that fills up while data is prepared: one sentence, nothing torn, and the work goes on when there is room again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.prepare import content, prepare, spec, write_big

SHELL = """
mount -t tmpfs -o size={size} tmpfs cache
{prepare} 2> first.txt; echo $? > first.code
find cache/stores -name manifest.json > torn.txt 2> /dev/null
mount -o remount,size=64m tmpfs cache
{prepare} --json > second.json || exit 1
cp -r cache/stores kept && ls cache/units > units.txt
"""


@pytest.mark.parametrize("size", ["1m", "3m"], ids=["in a unit", "in the store"])
def test_B47_a_full_disk_is_told_and_what_is_finished_is_kept(tmp_path: Path, size: str) -> None:
    data = write_big(tmp_path / "rows.jsonl", 5)
    source = {"train": [str(data)], "max_length": 256, "workers": 2, "cache_dir": "cache"}
    (tmp_path / "run.yaml").write_text(json.dumps({"model": {"path": "tiny"}, "data": source}))
    (tmp_path / "cache").mkdir()
    shell = SHELL.format(size=size, prepare=f"{sys.executable} -m arrowtune prepare run.yaml")
    own = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*own, "mount -t tmpfs tmpfs /mnt"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no user mount a tmpfs")
    done = subprocess.run([*own, shell], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "first.code").read_text() == "3\n"
    told = [line for line in (tmp_path / "first.txt").read_text().splitlines() if "cut to max_length" not in line]
    assert told[0].startswith("error: the cache folder cache")
    assert told[0].endswith("has no space left")
    assert told[1].startswith("  hint: free some space")
    assert len(told) == 2
    assert (tmp_path / "torn.txt").read_text() == ""
    [store] = json.loads((tmp_path / "second.json").read_text())["stores"]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [store["identity"]]
    assert (tmp_path / "units.txt").read_text() == ""
    undisturbed = prepare(data, tmp_path / "roomy", rendering=spec(max_length=256))
    assert content(tmp_path / "kept" / store["identity"]) == content(undisturbed.store_path)
