"""A store is larger than the memory of those who read it, and costs them none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from arrowtune.data.store import Writer
from arrowtune.protocols import Tokens

ROWS, LENGTH = 20_000, 1_000

READ = """
import gc, re, resource, sys
from pathlib import Path
import numpy as np
from arrowtune.data.store import Store

store = Store(sys.argv[1])
rows = np.random.default_rng(int(sys.argv[2])).permutation(len(store))

def private():
    # What it owns and the kernel cannot take back: pages of the store count where nobody else has them mapped, else not.
    gc.collect()
    return int(re.search(r"Private_Dirty:\\s+(\\d+) kB", Path("/proc/self/smaps_rollup").read_text())[1]) << 10

def epoch():
    trained = 0
    for start in range(0, len(rows), 64):
        trained += int(store.fetch(rows[start : start + 64]).loss_weights.sum())
    return trained

store.fetch(rows[:64])
data = int(re.search(r"VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
limit = data + (24 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
before = private()
seen, used = set(), []
for _ in range(3):
    seen.add(epoch())
    used.append(private() - before)
print(*seen, *used)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 MB."""
    ids = np.arange(1_000 * LENGTH, dtype=np.int32)
    weights = (ids % 2).astype(np.float32)
    with Writer(tmp_path_factory.mktemp("stores") / "store", file_bytes=16 << 20) as writer:
        for _ in range(ROWS // 1_000):
            writer.append(Tokens(ids, weights, np.arange(1_001, dtype=np.int64) * LENGTH))
        return writer.publish({"identity": "x", "sources": []})


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is the kernel's")
def test_B51_loaders_read_four_times_what_they_may_own_and_keep_none_of_it(store: Path) -> None:
    assert sum(path.stat().st_size for path in store.iterdir()) > 4 * (24 << 20)
    loaders = [
        subprocess.Popen(
            [sys.executable, "-c", READ, str(store), str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for seed in range(8)
    ]
    for loader in loaders:
        out, told = loader.communicate(timeout=100)
        assert loader.returncode == 0, told
        trained, *used = map(int, out.split())
        assert trained == ROWS * LENGTH // 2
        assert max(used) < 4 << 20
        assert used[-1] - used[0] < 1 << 20
