"""Several trackers as one. Metrics are not worth a training run: a tracker that fails is reported, and the run goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from arrowtune.protocols import Tracker
from arrowtune.types import EvalStats, StepStats

log = logging.getLogger(__name__)


class Composite:
    """Hands everything to each tracker. The first failure of each is logged; later ones are not, and none is raised.

    A tracker that failed is asked again the next time: a full disk or a lost connection may come back.

    Args:
        trackers: By name.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self._failed: set[str] = set()

    def train(self, stats: StepStats) -> None:
        """One optimizer step."""
        self._each(lambda tracker: tracker.train(stats))

    def evaluated(self, stats: EvalStats) -> None:
        """One evaluation set."""
        self._each(lambda tracker: tracker.evaluated(stats))

    def event(self, step: int, event: str, **fields: Any) -> None:
        """Something else that happened."""
        self._each(lambda tracker: tracker.event(step, event, **fields))

    def close(self) -> None:
        """Close every tracker; safe to call twice."""
        self._each(lambda tracker: tracker.close())
        self._trackers = {}

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in self._trackers.items():
            try:
                call(tracker)
            except Exception as error:  # noqa: BLE001
                if name not in self._failed:
                    self._failed.add(name)
                    log.warning("the tracker %s failed: %s; training goes on, and it will not be reported again", name, error)
