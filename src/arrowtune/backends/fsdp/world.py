"""The ranks of a run, as this process sees them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class World:
    """This rank among all.

    Attributes:
        rank, size: Of all nodes.
        device: Where this rank computes.
        mesh: One dimension, `dp`, over all ranks.
        owned: Whether the process group was made here and ends with the backend.
    """

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh
    owned: bool

    @classmethod
    def open(cls) -> World:
        """Join the process group that a launcher describes in the environment, or be a world of one."""
        device = _device()
        owned = not dist.is_initialized()
        if owned:
            _join(device)
        rank, size = dist.get_rank(), dist.get_world_size()
        mesh = init_device_mesh(device.type, (size,), mesh_dim_names=("dp",))
        return cls(rank, size, device, mesh, owned)

    def sum(self, *values: torch.Tensor) -> list[float]:
        """Each scalar summed over all ranks, in double precision, with one collective."""
        packed = torch.stack([value.detach().to(torch.float64) for value in values])
        if self.size > 1:
            dist.all_reduce(packed)
        return [float(value) for value in packed.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """The value of every rank, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def close(self) -> None:
        """Leave the process group, if it was joined here."""
        if self.owned and dist.is_initialized():
            dist.destroy_process_group()


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _join(device: torch.device) -> None:
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend, timeout=_TIMEOUT)
    else:
        # A world of one needs no port and no environment.
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=_TIMEOUT)
