"""The command line as a person meets it: a process, its two streams and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def arrowtune(*arguments: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `arrowtune ARGUMENTS` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "arrowtune", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
