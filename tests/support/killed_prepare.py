"""Kill `prepare` before each thing it does to its cache, and see what comes of it.

Usage: `python -m support.killed_prepare FOLDER EVERY WORKERS`. Every so many-th moment is tried; prints how often the killed
process had come how far.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.prepare import chats, content, prepare, write_lines

FILLER = {"messages": [{"role": "user", "content": "and on " * 600_000}]}
"""A row of 4 MB that costs little: a unit ends with it."""


def rows() -> list[Any]:
    """Three units."""
    few = chats(30)
    return [*few[:10], FILLER, *few[10:20], FILLER, *few[20:]]


def in_child(work: Callable[[], None]) -> int:
    """The exit status of a process that does the work; this one never loads what a fork could break."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except Exception:  # noqa: BLE001 - the parent is told by the status
            traceback.print_exc()
        os._exit(status)
    return os.waitpid(pid, 0)[1]


def die_at(folder: Path, moment: int) -> None:
    """End this process before its `moment`-th event that concerns the folder."""
    left, inside = moment, f"{folder}{os.sep}"

    def count(_: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if any(isinstance(path, str | os.PathLike) and os.fspath(path).startswith(inside) for path in arguments[:2]):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def reached(cache: Path) -> str:
    """How far a killed process had come."""
    if any(not path.name.startswith(".") for path in cache.glob("stores/*")):
        return "published"
    return "merging" if any(cache.glob("stores/.tmp-*")) else "encoding" if any(cache.glob("units/*/")) else "begun"


def main(folder: Path, every: int, workers: int) -> None:
    """From the first moment to the one that never comes."""
    data, cache, expected = write_lines(folder / "rows.jsonl", rows()), folder / "cache", folder / "expected"

    def undisturbed() -> None:
        shutil.copytree(prepare(data, folder / "other").path, expected)

    def whole() -> None:
        prepared = prepare(data, cache, workers=workers)
        assert content(prepared.store_path) == content(expected)
        left = sorted(path.name for name in ("stores", "units") for path in (cache / name).iterdir())
        assert left == [prepared.identity], left

    def killed_at(moment: int) -> bool:
        def work() -> None:
            die_at(cache, moment)
            whole()

        return os.WIFSIGNALED(in_child(work))

    assert in_child(undisturbed) == 0
    moment, seen, killed = 0, Counter[str](), True
    while killed:
        shutil.rmtree(cache, ignore_errors=True)
        killed = killed_at(moment)
        seen[reached(cache) if killed else "done"] += 1
        assert in_child(whole) == 0, f"killed at moment {moment}"
        moment += every
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
