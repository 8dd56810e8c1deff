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
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from arrowtune.errors import CheckpointError
from arrowtune.fingerprint import digest_file, write_atomic

MARKER = "complete.json"
FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")


class Ranks(Protocol):
    """What a checkpoint needs of the ranks: a backend has it."""

    rank: int

    def gather(self, value: Any) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        path: Its folder.
        step: Optimizer steps done when it was saved.
        state: What the trainer saved beside the backend: plain JSON values.
    """

    path: Path
    step: int
    state: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of a run. Every rank calls every method, in the same order; rank 0 touches the markers.

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

    def save(self, step: int, state: Mapping[str, Any], write: Callable[[Path], None]) -> Path:
        """Write a checkpoint; it appears whole, or not at all. What was saved last is not written again.

        Args:
            step: Optimizer steps done.
            state: Plain JSON values to keep beside the backend's files; its `plan` tells the checkpoints of this plan.
            write: Writes this rank's part into the folder it is given.

        Raises:
            CheckpointError: It could not be written, on any rank; older checkpoints are untouched.
        """
        final = self.folder / f"step-{step:08d}"
        if final == self._saved:
            return final
        partial = final.with_name(f"{final.name}.partial")
        self._together(lambda: self._begin(partial), f"{final} cannot be begun")
        try:
            self._together(lambda: write(partial), f"{final} could not be saved")
            told = {"step": step, "world_size": len(self._ranks.gather(None)), "state": state}
            self._together(lambda: _publish(partial, final, told), f"{final} could not be completed", leader_only=True)
        except CheckpointError:
            if self._ranks.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        if self._ranks.rank == 0:
            self._prune(state)
        self._saved = final
        return final

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint whose files are what its marker says, or None."""
        found: Checkpoint | None
        found, self.passed_over = self._ranks.gather(self._search() if self._ranks.rank == 0 else None)[0]
        return found

    def at(self, path: Path) -> Checkpoint:
        """The checkpoint in a folder that was named.

        Raises:
            CheckpointError: It is missing, incomplete or damaged.
        """

        def look() -> Checkpoint | str:
            try:
                return read_checkpoint(path)
            except CheckpointError as error:
                return error.message

        found: Checkpoint | str = self._ranks.gather(look() if self._ranks.rank == 0 else None)[0]
        if isinstance(found, str):
            raise CheckpointError(found, hint="name a folder such as runs/NAME/checkpoints/step-00000100")
        return found

    def _search(self) -> tuple[Checkpoint | None, list[str]]:
        passed_over: list[str] = []
        for path in reversed(_in_order(self.folder)):
            try:
                return read_checkpoint(path), passed_over
            except CheckpointError as error:
                passed_over.append(error.message)
        return None, passed_over

    def _begin(self, partial: Path) -> None:
        if self._ranks.rank != 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob("step-*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir()

    def _together(self, act: Callable[[], None], failure: str, *, leader_only: bool = False) -> None:
        """Act on every rank, and raise on every rank when one of them failed."""
        trouble = None
        if not leader_only or self._ranks.rank == 0:
            try:
                act()
            except (OSError, RuntimeError, CheckpointError) as error:
                trouble = _reason(error)
        troubles = [told for told in self._ranks.gather(trouble) if told is not None]
        if troubles:
            raise CheckpointError(f"{failure}: {troubles[0]}", hint="make room on the disk, or lower checkpoint.keep")

    def _prune(self, state: Mapping[str, Any]) -> None:
        own = [path for path in _in_order(self.folder) if _plan_of(path) == state.get("plan")]
        for path in own[: -self.keep]:
            # Renamed first: a removal that is cut short must leave neither a folder that looks complete nor one for ever.
            removed = path.with_name(f"{path.name}.removed.partial")
            with contextlib.suppress(OSError):  # What cannot be removed costs space, not the run.
                os.rename(path, removed)
                shutil.rmtree(removed, ignore_errors=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in `path`, its files checked against the marker's sizes and digests.

    Raises:
        CheckpointError: There is none, it is incomplete, or a file is damaged.
    """
    marker = _read_marker(path)
    for entry in marker["files"]:
        file = path / entry["name"]
        if not file.is_file():
            raise CheckpointError(f"the checkpoint {path} lacks its file {entry['name']}")
        if file.stat().st_size != entry["bytes"]:
            raise CheckpointError(f"{file} has {file.stat().st_size} bytes, not the {entry['bytes']} that were saved")
        if digest_file(file) != entry["xxh3"]:
            raise CheckpointError(f"{file} is damaged: its digest is not the one that was saved")
    return Checkpoint(path, int(marker["step"]), marker["state"])


def _read_marker(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        marker = json.loads((path / MARKER).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"the checkpoint {path} is incomplete: it has no {MARKER}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / MARKER} cannot be read: {error}") from None
    if not isinstance(marker, dict) or marker.get("format") != FORMAT:
        raise CheckpointError(f"{path} was saved by another version of arrowtune")
    return marker


def _publish(partial: Path, final: Path, told: Mapping[str, Any]) -> None:
    files = [_entry(path, partial) for path in sorted(partial.rglob("*")) if path.is_file()]
    saves = 1 + max((_saves(path) for path in _candidates(final.parent)), default=0)
    marker = {"format": FORMAT, "saves": saves, **told, "files": files}
    write_atomic(partial / MARKER, json.dumps(marker, indent=1).encode())
    _sync_folder(partial)
    if (final / MARKER).exists():
        # Saved before by a run that was then continued from further back.
        os.rename(final, final.with_name(f"{final.name}.replaced.partial"))
    elif final.exists():
        os.rename(final, _free_name(final))
    os.rename(partial, final)
    _sync_folder(final.parent)


def _entry(path: Path, folder: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"name": path.relative_to(folder).as_posix(), "bytes": path.stat().st_size, "xxh3": digest_file(path)}


def _candidates(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def _in_order(folder: Path) -> list[Path]:
    """What may be checkpoints, in the order they were saved; those that do not say come last, where `newest` sees them first."""
    return sorted(_candidates(folder), key=lambda path: (_saves(path) or math.inf, path.name))


def _saves(path: Path) -> int:
    """How many saves the folder of a checkpoint had seen with it; 0 where it does not say."""
    try:
        return int(_read_marker(path).get("saves", 0))
    except CheckpointError:
        return 0


def _plan_of(path: Path) -> Any:
    try:
        return _read_marker(path)["state"].get("plan")
    except CheckpointError:
        return None


def _free_name(path: Path) -> Path:
    """A name beside `path` for what was found there and is not ours."""
    names = (path.with_name(f"{path.name}.set-aside" + (f"-{number}" if number else "")) for number in itertools.count())
    return next(name for name in names if not name.exists())


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
