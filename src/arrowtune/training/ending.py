"""What the end of a run owes, and what of it is done: `end.json` in the run folder.

A run that was stopped at its last step has trained everything and may still lack its evaluation or its export; a finished run
that is started again must do nothing at all. Both are told apart by this file. It goes when training begins, so that it never
speaks of another step than the one the run stands at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from arrowtune.fingerprint import write_atomic
from arrowtune.training.config import CheckpointConfig, EvalConfig, ExportConfig
from arrowtune.training.export import marker_of
from arrowtune.types import Progress

FILE_NAME = "end.json"


@dataclass(frozen=True, slots=True)
class End:
    """What was done after the last step.

    Attributes:
        progress: Where the run stood.
        plan: The plan's fingerprint.
        evaluated: The evaluation sets that were measured there, by name, with their stores' identities.
        export: The dtype that the export was asked for; None where none was written.
    """

    progress: Progress
    plan: Mapping[str, str]
    evaluated: Mapping[str, str] = field(default_factory=dict)
    export: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Which of the things that follow the last step were done for the run as it is configured now."""

    evaluated: bool = False
    exported: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """What a run wants to have been done when it ends. Only rank 0 calls the methods that read or write.

    Attributes:
        folder: The run folder.
        plan: The plan's fingerprint.
        steps: Steps of the plan.
        eval_sets: By name, with their stores' identities.
        eval, checkpoint, export: The sections of the run file.
    """

    folder: Path
    plan: Mapping[str, str]
    steps: int
    eval_sets: Mapping[str, str]
    eval: EvalConfig
    checkpoint: CheckpointConfig
    export: ExportConfig

    @property
    def _path(self) -> Path:
        return self.folder / FILE_NAME

    def wants_checkpoint(self, step: int) -> bool:
        """Whether the run must leave a checkpoint when it ends at `step`: always where it is to be continued."""
        return self.checkpoint.at_end or step < self.steps or due(self.checkpoint.every, step)

    def read(self) -> End | None:
        """What was done so far; None where that is nothing, or is of another plan."""
        try:
            told = json.loads(self._path.read_bytes())
            end = End(**{**told, "progress": Progress(**told["progress"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return end if end.plan == self.plan else None

    def wants_evaluation(self, step: int) -> bool:
        """Whether the evaluation sets are to be measured when the run ends at `step`."""
        return bool(self.eval_sets) and (self.eval.at_end or due(self.eval.every, step))

    def done(self, step: int) -> Done:
        """What was done so far at the end of a run that stands at `step`."""
        end = self.read()
        if end is None or end.progress.step != step:
            return Done()
        there = marker_of(self.folder / "export") or {}
        exported = end.export == self.export.dtype and there.get("step") == step
        return Done(evaluated=bool(end.evaluated) and end.evaluated == self.eval_sets, exported=exported)

    def finished(self, last: int, newest: int | None) -> Progress | None:
        """Where the run stands if nothing is left to do, else None.

        A run whose checkpoints were removed, to free the disk, is as finished as before: it must not be trained once more.

        Args:
            last: The step at which the run ends.
            newest: The step of the checkpoint that it would continue from; None where there is none at all.
        """
        end = self.read()
        if end is None or end.progress.step < last:
            return None
        step = end.progress.step
        done = self.done(step)
        owed = (
            self.wants_checkpoint(step) and newest is not None and newest != step,
            self.wants_evaluation(step) and not done.evaluated,
            self.export.at_end and not done.exported,
        )
        return None if any(owed) else end.progress

    def note(self, progress: Progress, done: Done) -> None:
        """Write down that the run has ended at `progress`, and what was done there.

        Raises:
            OSError: The run folder cannot be written.
        """
        end = End(progress, self.plan, self.eval_sets if done.evaluated else {}, self.export.dtype if done.exported else None)
        write_atomic(self._path, json.dumps(asdict(end), indent=1).encode())

    def forget(self) -> None:
        """Training goes on: whatever was done at an end is so no more.

        Raises:
            OSError: The file cannot be removed.
        """
        self._path.unlink(missing_ok=True)


def has_ended(folder: Path) -> bool:
    """Whether the run in a folder has come to an end that nothing has followed yet."""
    return (folder / FILE_NAME).exists()


def due(every: int, step: int) -> bool:
    """Whether something that happens every so many steps happens after `step`."""
    return every > 0 and step % every == 0
