"""`metrics.jsonl`: one JSON object a line, for programs. Every line is one write, so readers never see half of one."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arrowtune.errors import ConfigError
from arrowtune.track.config import TrackerConfig
from arrowtune.track.run import TrackedRun
from arrowtune.types import EvalStats, StepStats

FILE_NAME = "metrics.jsonl"
_SPEEDS = ("tokens_per_second", "tokens_per_second_per_device")


class JsonlTracker:
    """Appends to `metrics.jsonl` in the run folder.

    Every line has `kind` (`train`, `eval` or `event`), `step` (1-based, 0 before the first) and `time` (seconds since
    1970). Train lines carry all of `StepStats` with its speeds; eval lines all of `EvalStats`; event lines
    `event` and its fields. A number that is not finite is written as null.

    Raises:
        ConfigError: The file cannot be written.
    """

    def __init__(self, config: TrackerConfig, run: TrackedRun) -> None:
        self._path = run.folder / FILE_NAME
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
            cut_after(self._path, run.resume_step)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror}", hint="choose another output_dir") from error

    def train(self, stats: StepStats) -> None:
        """One optimizer step."""
        self._write("train", asdict(stats) | {name: getattr(stats, name) for name in _SPEEDS})

    def evaluated(self, stats: EvalStats) -> None:
        """One evaluation set."""
        self._write("eval", asdict(stats))

    def event(self, step: int, event: str, **fields: Any) -> None:
        """Something else that happened."""
        self._write("event", fields | {"step": step, "event": event})

    def close(self) -> None:
        """Flush to disk and close; safe to call twice."""
        if self._file >= 0:
            file, self._file = self._file, -1
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def _write(self, kind: str, fields: dict[str, Any]) -> None:
        head = {"kind": kind, "step": fields["step"], "time": round(time.time(), 3)}
        text = json.dumps(_plain(head | fields | head), ensure_ascii=False, allow_nan=False)
        # A lone surrogate, from a file name that is not UTF-8, becomes its JSON escape.
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        end = os.fstat(self._file).st_size
        written = os.write(self._file, line)
        if written < len(line):
            # The disk is full: half a line would spoil the next one.
            os.ftruncate(self._file, end)
            raise OSError(f"{self._path} took {written} of {len(line)} bytes")


def cut_after(path: Path, step: int) -> None:
    """Remove what a run that continues from `step` will write again, and what a crash left unfinished.

    Lines of later steps and a torn last line go; for a fresh start (`step` 0) all go. The file is replaced in one move
    if anything changes, else left alone.
    """
    if not path.exists():
        return
    aside = path.with_name(f".{path.name}.partial")
    with path.open("rb") as lines, aside.open("wb") as kept:
        size = os.fstat(lines.fileno()).st_size
        for line in _lines_until(lines, step):
            kept.write(line)
        kept.flush()
        os.fsync(kept.fileno())
        same = kept.tell() == size
    if same:
        aside.unlink()
    else:
        os.replace(aside, path)


def _lines_until(lines: Iterator[bytes], step: int) -> Iterator[bytes]:
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if step and isinstance(record, dict) and record.get("step", 0) <= step:
            yield line if line.endswith(b"\n") else line + b"\n"


def _plain(value: Any) -> Any:
    """Only what JSON has: numpy numbers become Python's, paths text, and what is not finite null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
