"""The `track` section of the run file: a list of trackers, each by name or with its settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from arrowtune.section import Section


class TrackerConfig(Section):
    """One place where metrics go."""

    name: Literal["console", "jsonl"]
    """`console` prints progress to stderr; `jsonl` writes `metrics.jsonl` in the run folder."""


def _by_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Trackers = Annotated[tuple[Annotated[TrackerConfig, BeforeValidator(_by_name)], ...], Field(strict=False)]
