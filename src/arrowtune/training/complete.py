"""When a checkpoint folder is complete: its marker, how it is read, published, and found again after a kill."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arrowtune.errors import CheckpointError
from arrowtune.fingerprint import digest_file, write_atomic

MARKER = "complete.json"
FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")
_ASIDE = re.compile(r"(step-\d{8,})(\.replaced)?\.partial")


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


def read_checkpoint(path: Path, *, digests: bool = True) -> Checkpoint:
    """The checkpoint in `path`, its files checked against the marker's sizes and digests.

    Args:
        path: Its folder.
        digests: Whether to read every file; sizes are compared in any case.

    Raises:
        CheckpointError: There is none, it is incomplete, or a file is damaged.
    """
    marker = read_marker(path)
    for entry in marker["files"]:
        file = path / entry["name"]
        if not file.is_file():
            raise CheckpointError(f"the checkpoint {path} lacks its file {entry['name']}")
        if file.stat().st_size != entry["bytes"]:
            raise CheckpointError(f"{file} has {file.stat().st_size} bytes, not the {entry['bytes']} that were saved")
        if digests and _digest(file) != entry["xxh3"]:
            raise CheckpointError(f"{file} is damaged: its digest is not the one that was saved")
    return Checkpoint(path, int(marker["step"]), marker["state"])


def read_marker(path: Path) -> dict[str, Any]:
    """What `complete.json` says of a checkpoint.

    Raises:
        CheckpointError: There is none, or it cannot be read.
    """
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        marker = json.loads((path / MARKER).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"the checkpoint {path} is incomplete: it has no {MARKER}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / MARKER} cannot be read: {error}") from None
    if not isinstance(marker, dict) or marker.get("format") != FORMAT or not {"files", "step", "state"} <= marker.keys():
        raise CheckpointError(f"{path} was saved by another version of arrowtune")
    return marker


def is_marked(path: Path) -> bool:
    """Whether the folder was complete once, whatever has become of it."""
    return (path / MARKER).exists()


def entries_of(files: Iterable[Path], folder: Path) -> list[dict[str, Any]]:
    """What the marker says of some files of `folder`: names, sizes, digests. They are on the disk afterwards.

    Raises:
        OSError: One is missing, or cannot be read.
    """
    return [_entry(path, folder) for path in files]


def publish(partial: Path, final: Path, told: Mapping[str, Any], written: Iterable[dict[str, Any]] = ()) -> None:
    """Mark what was written as complete and give it its name.

    Args:
        partial: Where it was written.
        final: Its name.
        told: What else the marker says.
        written: `entries_of` the files, by those who wrote them; a file that is not among them is read here.

    Raises:
        CheckpointError: A file of `written` is not there: it was written to a disk of another machine.
        OSError: It cannot be done.
    """
    entries = {entry["name"]: entry for entry in written}
    for entry in entries.values():
        _check_seen(partial / entry["name"], entry["bytes"])
    names = [path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file()]
    others = entries_of([partial / name for name in names if name not in entries], partial)
    files = sorted([*entries.values(), *others], key=lambda entry: str(entry["name"]))
    saves = 1 + max((_saves(path) for path in _candidates(final.parent)), default=0)
    marker = {"format": FORMAT, "saves": saves, **told, "files": files}
    write_atomic(partial / MARKER, json.dumps(marker, indent=1).encode())
    _sync_folder(partial)
    if is_marked(final):
        # Saved before by a run that was then continued from further back. Between the two renames it has no name of its
        # own; `recover` gives it back after a kill.
        os.rename(final, final.with_name(f"{final.name}.replaced.partial"))
    elif final.exists():
        os.rename(final, _free_name(final))
    os.rename(partial, final)
    _sync_folder(final.parent)


def recover(folder: Path) -> None:
    """Give their names to checkpoints that are complete, but were killed just before they got them.

    Only for the one process that writes the folder: what it renames may be what another one is about to rename.
    """
    if not folder.is_dir():
        return
    # In order, so that what was newly saved goes before what it replaces.
    for aside in sorted(folder.glob("step-*.partial")):
        match = _ASIDE.fullmatch(aside.name)
        if match is None or (folder / match[1]).exists():
            continue
        try:
            read_checkpoint(aside)
            os.rename(aside, folder / match[1])
        except (CheckpointError, OSError):
            continue  # An interrupted save; the next one sweeps it away.


def in_order(folder: Path) -> list[Path]:
    """What may be checkpoints, in the order they were saved; those that do not say come last, where a search looks first."""
    return sorted(_candidates(folder), key=lambda path: (_saves(path) or math.inf, path.name))


def last_marked(folder: Path) -> Path | None:
    """The checkpoint that was saved last, from the markers alone; None where there is none."""
    marked = [path for path in in_order(folder) if _saves(path)]
    return marked[-1] if marked else None


def plan_of(path: Path) -> Any:
    """The plan that a checkpoint belongs to; None where it does not say."""
    try:
        return read_marker(path)["state"].get("plan")
    except CheckpointError:
        return None


def _digest(file: Path) -> str:
    try:
        return digest_file(file)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from None


def _entry(path: Path, folder: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"name": path.relative_to(folder).as_posix(), "bytes": path.stat().st_size, "xxh3": digest_file(path)}


def _check_seen(path: Path, size: int) -> None:
    # Opened, not only looked up: on NFS that asks the server.
    try:
        with path.open("rb") as file:
            seen = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        seen = -1
    if seen != size:
        raise CheckpointError(
            f"rank 0 does not see {path.name} as the rank that wrote it",
            hint="put output_dir on storage that all nodes share",
        )


def _candidates(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def _saves(path: Path) -> int:
    """How many saves the folder of a checkpoint had seen with it; 0 where it does not say."""
    try:
        return int(read_marker(path).get("saves", 0))
    except CheckpointError:
        return 0


def _free_name(path: Path) -> Path:
    """A name beside `path` for what was found there and is not ours."""
    names = (path.with_name(f"{path.name}.set-aside" + (f"-{number}" if number else "")) for number in itertools.count())
    return next(name for name in names if not name.exists())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
