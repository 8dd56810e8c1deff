"""The `launch` section of the run file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from arrowtune.section import Section


class LaunchConfig(Section):
    """Who starts the ranks."""

    name: Literal["local"] = "local"
    """This machine: in process for one device, torch elastic for several. An outer `torchrun` is joined."""
    devices_per_node: Annotated[int, Field(ge=1)] | None = None
    """Ranks on this machine; all GPUs when absent, or one process where there is none."""
