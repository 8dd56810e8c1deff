"""Kill a save before each thing it does to the file system, and see what is left: `python -m support.killed_saves FOLDER OLD`.

The save is of step 2, and step OLD was saved before: another step, or the same one, which is replaced then. Prints how often
it killed, and how often the old and the new checkpoint was the newest afterwards.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from arrowtune.training.checkpoint import Checkpoints

STATE: dict[str, Any] = {"progress": {}, "plan": {"seed": "1"}}
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree", "os.scandir", "os.listdir")


class OneRank:
    """A run of one rank."""

    rank = 0

    def gather(self, value: Any) -> list[Any]:
        """The one value."""
        return [value]


def write(folder: Path, text: str) -> list[Path]:
    """Two files, as two ranks would."""
    files = [folder / f"{rank}.bin" for rank in range(2)]
    for file in files:
        file.write_text(text)
    return files


def save(folder: Path, step: int, text: str) -> None:
    """Save the checkpoint of a step; the one before it is removed."""
    Checkpoints(folder, keep=1, ranks=OneRank()).save(step, STATE, lambda path: write(path, text))


def save_and_die(folder: Path, moment: int) -> bool:
    """Save in a process that is killed before its `moment`-th event; whether it was."""
    pid = os.fork()
    if pid == 0:
        left = moment

        def count(event: str, _: object) -> None:
            nonlocal left
            if event in EVENTS:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        save(folder, 2, "new")
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def main(folder: Path, old: int) -> None:
    """Every moment, from the first to the one that never comes."""
    newest: list[str] = []
    killed = True
    while killed:
        shutil.rmtree(folder, ignore_errors=True)
        save(folder, old, "old")
        killed = save_and_die(folder, len(newest))
        found = Checkpoints(folder, keep=1, ranks=OneRank()).newest()
        assert found is not None, f"nothing complete was left at moment {len(newest)}"
        newest.append((found.path / "0.bin").read_text())
        save(folder, 3, "next")
        assert [path.name for path in folder.iterdir()] == ["step-00000003"], sorted(folder.iterdir())
    print(len(newest) - 1, newest.count("old"), newest.count("new"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "checkpoints", int(sys.argv[2]))
