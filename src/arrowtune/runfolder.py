"""The folder of one run: its names, its lock, and JSON files that are whole or absent.

It holds `resolved.json`, `metrics.jsonl`, `checkpoints/step-00000100/`, `tokenizers/`, `export/`, `end.json`, `logs/rank-0.log`
and `.lock`; see docs/runs.md.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arrowtune.errors import ConfigError, RunLocked


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of a run. Nothing is created before it is needed.

    Attributes:
        path: The folder itself, `output_dir` of the run file.
    """

    path: Path

    @property
    def resolved(self) -> Path:
        """The run as it is carried out, every derived number with its reason."""
        return self.path / "resolved.json"

    @property
    def metrics(self) -> Path:
        """One JSON object per line: train steps, evaluations, events."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Holds one `step-N` folder per checkpoint."""
        return self.path / "checkpoints"

    @property
    def tokenizers(self) -> Path:
        """Holds every tokenizer and template that the run was trained with, each under a name made of its content."""
        return self.path / "tokenizers"

    @property
    def export(self) -> Path:
        """The finished model, as `transformers` loads it."""
        return self.path / "export"

    @property
    def logs(self) -> Path:
        """Holds one `rank-N.log` per rank of a run with several devices."""
        return self.path / "logs"

    def create(self) -> RunFolder:
        """Make the folder.

        Raises:
            ConfigError: It cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable("made", error) from None
        return self

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process, so that two runs never write into it.

        The kernel lets go of the lock when the process ends, however it ends.

        Raises:
            RunLocked: Another process holds it; the message says which.
            ConfigError: The folder cannot be written.
        """
        path = self.create().path / ".lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unusable("written", error) from None
        try:
            self._take(descriptor)
            _say_who(descriptor)
            yield
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def _unusable(self, verb: str, error: OSError) -> ConfigError:
        return ConfigError(f"the run folder {self.path} cannot be {verb}: {error.strerror}", hint="choose another output_dir")

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise self._unusable("locked", error) from None
            raise RunLocked(
                f"the run folder {self.path} is in use by {_holder(descriptor)}",
                hint="wait for it, stop it, or choose another name or output_dir",
            ) from None


def _say_who(descriptor: int) -> None:
    """Write this process into the lock file. Only for people: the lock itself is the kernel's."""
    who = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": shlex.join(sys.argv),
    }
    with suppress(OSError):  # A full disk keeps the name out of the file, not the lock from being held.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(who).encode(), 0)


def _holder(descriptor: int) -> str:
    try:
        who = json.loads(os.pread(descriptor, 65536, 0))
        return f"process {who['pid']} on {who['host']}, started {who['started']}: {who['command']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is whole or, after a crash or a full disk, as it was before.

    Raises:
        OSError: The file cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def read_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        OSError, ValueError: It cannot be read, or is not JSON.
    """
    return json.loads(path.read_text(encoding="utf-8"))


def _sync_folder(folder: Path) -> None:
    """Make a rename inside the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
