"""Which of several ranks says why a run has ended."""

from __future__ import annotations

from typing import Any

import pytest

from arrowtune.errors import BackendError, CheckpointError, Interrupted, WorkerLost
from arrowtune.launch.hub import Outcome, cause, stopped

CLEAN = Interrupted(15, "stopped after step 3; the checkpoint is step-3")
LEFT = Interrupted(15, "stopped")
CRASH = WorkerLost("rank 1 failed: RuntimeError: connection closed")
FULL = CheckpointError("nothing was saved")


def outcomes(*ends: tuple[str, Any]) -> list[Outcome]:
    """Ranks that ended one after the other."""
    return [Outcome(rank, kind, value) for rank, (kind, value) in enumerate(ends)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([("stopped", CLEAN), ("stopped", CLEAN)], CLEAN),
        ([("left", LEFT), ("lost", -15)], LEFT),
        ([("left", LEFT), ("crash", CRASH)], LEFT),
        ([("crash", CRASH), ("stopped", CLEAN)], CLEAN),
        ([("left", LEFT), ("stopped", CLEAN)], CLEAN),
        # Elastic ends the peers of a failed rank with a signal.
        ([("crash", CRASH), ("left", LEFT)], None),
        ([("lost", -9), ("left", LEFT)], None),
        ([("error", FULL), ("left", LEFT)], None),
        ([("error", FULL), ("error", FULL)], None),
        ([("done", 1), ("done", None)], None),
    ],
)
def test_a_signal_is_why_a_run_ended_unless_something_failed_before(ends: list[tuple[str, Any]], said: Any) -> None:
    assert stopped(outcomes(*ends)) is said


def test_the_cause_is_first_hand() -> None:
    found = cause(outcomes(("crash", CRASH), ("error", BackendError("out of memory"))))
    assert found is not None
    assert found.kind == "error"
