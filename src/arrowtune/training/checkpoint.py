"""Checkpoint folders: complete or not there.

    checkpoints/step-00000100/        what the backend wrote, and complete.json, written last: names, sizes, digests
    checkpoints/step-00000200.partial/    a save that did not finish; swept away by the next one

A folder without `complete.json` is never loaded. Only `.partial` folders and old checkpoints of the same plan are ever
removed; anything else that is in the way of a save is renamed to `.set-aside`.

The newest checkpoint is the one that was saved last, which is not the one with the highest step when a run was continued
from further back: every marker counts the saves of its folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from arrowtune.errors import CheckpointError
from arrowtune.training.complete import (
    MARKER,
    Checkpoint,
    entries_of,
    in_order,
    is_marked,
    last_marked,
    plan_of,
    publish,
    read_checkpoint,
    recover,
)
from arrowtune.training.together import Ranks, leader, together

T = TypeVar("T")

__all__ = ["MARKER", "Checkpoint", "Checkpoints", "read_checkpoint"]


class Checkpoints:
    """The checkpoints of a run. Every rank calls every method, in the same order.

    Every rank digests the files that it wrote; rank 0 alone touches the markers.

    Args:
        folder: Holds one folder per checkpoint.
        keep: The newest so many of the same plan stay.
        ranks: All ranks of the run.
    """

    def __init__(self, folder: Path, *, keep: int, ranks: Ranks) -> None:
        self.folder = folder
        self.keep = keep
        self._ranks = ranks
        self._saved: Path | None = None
        self.passed_over: list[str] = []
        """Why `newest` did not take what looks newer, one sentence each."""

    def save(self, step: int, state: Mapping[str, Any], write: Callable[[Path], Iterable[Path]]) -> Path:
        """Write a checkpoint; it appears whole, or not at all. What was saved last is not written again.

        Args:
            step: Optimizer steps done.
            state: Plain JSON values to keep beside the backend's files; its `plan` tells the checkpoints of this plan.
            write: Writes this rank's part into the folder it is given, and returns the files that are its own.

        Raises:
            CheckpointError: It could not be written, on any rank; older checkpoints are untouched.
        """
        final = self.folder / f"step-{step:08d}"
        if final == self._saved:
            return final
        partial = final.with_name(f"{final.name}.partial")
        leader(self._ranks, _explained(lambda: self._begin(partial), f"{final} cannot be begun"))
        try:
            writing = _explained(lambda: entries_of(write(partial), partial), f"{final} could not be saved")
            written = together(self._ranks, writing)
            told = {"step": step, "world_size": len(written), "state": state}
            files = [entry for entries in written for entry in entries]
            leader(self._ranks, _explained(lambda: publish(partial, final, told, files), f"{final} could not be completed"))
        except CheckpointError:
            if self._ranks.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        if self._ranks.rank == 0:
            with contextlib.suppress(OSError):  # What cannot be removed costs space, not the run.
                self._prune(state)
        self._saved = final
        return final

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint whose files are what its marker says; None where none was ever completed.

        Raises:
            CheckpointError: There are some, and none of them can be read.
        """
        found: Checkpoint | None
        found, self.passed_over = leader(self._ranks, self._search)
        return found

    def latest(self) -> Path | None:
        """The folder of the checkpoint that was saved last, unread; None where there is none."""
        return leader(self._ranks, lambda: last_marked(self.folder))

    def at(self, path: Path) -> Checkpoint:
        """The checkpoint in a folder that was named.

        Raises:
            CheckpointError: It is missing, incomplete or damaged.
        """

        def look() -> Checkpoint:
            try:
                return read_checkpoint(path)
            except CheckpointError as error:
                raise CheckpointError(error.message, hint="name a folder such as runs/NAME/checkpoints/step-00000100") from None

        return leader(self._ranks, look)

    def _search(self) -> tuple[Checkpoint | None, list[str]]:
        recover(self.folder)
        passed_over: list[str] = []
        damaged: list[str] = []
        for path in reversed(in_order(self.folder)):
            try:
                return read_checkpoint(path), passed_over
            except CheckpointError as error:
                passed_over.append(error.message)
                if is_marked(path):
                    damaged.append(error.message)
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be read: {'; '.join(damaged)}",
                hint="remove that folder to train from the start, or name another checkpoint with checkpoint.resume: PATH",
            )
        return None, passed_over

    def _begin(self, partial: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        recover(self.folder)
        for leftover in self.folder.glob("step-*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir()

    def _prune(self, state: Mapping[str, Any]) -> None:
        own = [path for path in in_order(self.folder) if plan_of(path) == state.get("plan")]
        for path in own[: -self.keep]:
            # Renamed first: a removal that is cut short must leave neither a folder that looks complete nor one for ever.
            removed = path.with_name(f"{path.name}.removed.partial")
            with contextlib.suppress(OSError):
                os.rename(path, removed)
                shutil.rmtree(removed, ignore_errors=True)


def _explained(act: Callable[[], T], failure: str) -> Callable[[], T]:
    """The same, with what can go wrong as one sentence."""

    def explained() -> T:
        try:
            return act()
        except (OSError, RuntimeError, CheckpointError) as error:
            told = error.hint if isinstance(error, CheckpointError) else ""
            hint = told or "make room on the disk, or lower checkpoint.keep"
            raise CheckpointError(f"{failure}: {_reason(error)}", hint=hint) from error

    return explained


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
