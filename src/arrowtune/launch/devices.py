"""How many devices this machine has, without loading torch."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path


def count_devices() -> tuple[int, bool]:
    """The usable devices of this machine.

    Returns:
        The number of GPUs and True; or 1 and False where there is none that torch can use: a device is a process then.
    """
    gpus = _from_torch() if "torch" in sys.modules or Path("/dev/kfd").exists() else _from_driver()
    return (gpus, True) if gpus else (1, False)


def _from_torch() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _from_driver() -> int:
    """NVIDIA's management library counts devices in milliseconds; torch takes seconds to load."""
    if not _torch_has_cuda():
        return 0
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return 0
    nvml.nvmlShutdown()
    return visible(count.value, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(count: int, mask: str | None) -> int:
    """Of `count` GPUs those that `CUDA_VISIBLE_DEVICES` shows: entries up to the first that names none, as CUDA reads it."""
    if mask is None:
        return count
    seen = 0
    for entry in (part.strip() for part in mask.split(",")):
        if not (entry.startswith(("GPU-", "MIG-")) or (entry.isdigit() and int(entry) < count)):
            break
        seen += 1
    return seen


def _torch_has_cuda() -> bool:
    """Whether the installed torch was built for CUDA, from its version file."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    return bool(re.search(r"^cuda\b.*=\s*['\"]\d", version.read_text(encoding="utf-8"), re.MULTILINE))


def share_cores(local_ranks: int) -> None:
    """Give torch in this process its share of the cores, unless `OMP_NUM_THREADS` says otherwise."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, cores // local_ranks))
