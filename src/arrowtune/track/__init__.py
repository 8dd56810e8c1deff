"""Where metrics go. Adding a tracker is one file and one line of `TRACKERS`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from arrowtune.protocols import Tracker
from arrowtune.track.composite import Composite
from arrowtune.track.config import TrackerConfig
from arrowtune.track.run import TrackedRun

TRACKERS = {
    "console": "arrowtune.track.console:ConsoleTracker",
    "jsonl": "arrowtune.track.jsonl:JsonlTracker",
}
"""Name -> class, imported when it is used. A tracker is made from its `TrackerConfig` and the `TrackedRun`."""


def open_trackers(configs: Iterable[TrackerConfig], run_dir: Path, total_steps: int, resume_step: int) -> Tracker:
    """One tracker for all of `configs`; with none of them, one that keeps quiet.

    A tracker that cannot be opened ends the run at its start, where that costs nothing. One that fails later is
    reported once and does not disturb the training.

    Args:
        configs: The `track` section; empty on every rank but 0.
        run_dir: The run folder.
        total_steps: Steps of the plan.
        resume_step: The step the run continues from; 0 for a fresh one.

    Raises:
        ConfigError: A tracker cannot be opened.
    """
    run = TrackedRun(Path(run_dir), total_steps, resume_step)
    return Composite({config.name: _tracker(config.name)(config, run) for config in configs})


def _tracker(name: str) -> Callable[[TrackerConfig, TrackedRun], Tracker]:
    module, _, attribute = TRACKERS[name].partition(":")
    return cast(Callable[[TrackerConfig, TrackedRun], Tracker], getattr(importlib.import_module(module), attribute))
