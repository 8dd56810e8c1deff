"""Counting devices without loading torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from arrowtune.launch.devices import visible


@pytest.mark.parametrize(
    ("count", "mask", "seen"),
    [
        (4, None, 4),
        (4, "", 0),
        (4, "0", 1),
        (4, "2, 0", 2),
        (4, "-1", 0),
        (4, "0,9,1", 1),
        (2, "GPU-1a,GPU-2b", 2),
        (4, "NoDevFiles", 0),
    ],
)
def test_the_mask_is_read_as_cuda_reads_it(count: int, mask: str | None, seen: int) -> None:
    assert visible(count, mask) == seen


def test_counting_loads_no_torch_and_agrees_with_it() -> None:
    program = """
import sys
from arrowtune.launch.devices import count_devices
found = count_devices()
assert "torch" not in sys.modules
import torch
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
assert found == ((gpus, True) if gpus else (1, False)), found
assert count_devices() == found
"""
    subprocess.run([sys.executable, "-c", program], check=True)
