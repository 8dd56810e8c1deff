"""What a worker is told: how the rows of one source become examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from arrowtune.data.render import RenderSpec


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the rows of one source become examples. Picklable and small.

    Attributes:
        spec: The renderer.
        format: The name of the rows' format.
        columns: The source's names of columns.
        folder: Where finished units are kept; its name stands for everything above.
    """

    spec: RenderSpec
    format: str
    columns: Mapping[str, str | None]
    folder: Path
