"""Chat template rendering, trained spans, and the token engine: `Renderer(RenderSpec)` turns conversations into `Encoded`.

The names load on first use: a process that only hands specs to its workers needs neither Jinja nor an engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arrowtune.data.render.engine import StillLoading
    from arrowtune.data.render.renderer import Rendered, Renderer
    from arrowtune.data.render.spec import Encoded, Preview, RenderSpec

__all__ = ["Encoded", "Preview", "RenderSpec", "Rendered", "Renderer", "StillLoading"]

_HOMES = {"StillLoading": "engine", "Rendered": "renderer", "Renderer": "renderer"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'spec')}"), name)
