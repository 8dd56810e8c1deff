"""Chat template rendering, trained spans, and the token engine: `Renderer(RenderSpec)` turns conversations into `Encoded`."""

from arrowtune.data.render.engine import StillLoading
from arrowtune.data.render.renderer import Rendered, Renderer
from arrowtune.data.render.spec import Encoded, Preview, RenderSpec

__all__ = ["Encoded", "Preview", "RenderSpec", "Rendered", "Renderer", "StillLoading"]
