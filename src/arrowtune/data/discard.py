"""Removing folders that others may be looking at: out of sight by one rename, and only then file by file."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path

GONE = ".gone-"
"""How the names of things begin that are being removed."""


def discard(path: Path) -> None:
    """Remove a folder or file that may be in use or absent: whoever has it open keeps it, nobody finds half of it."""
    away = path.with_name(f"{GONE}{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        os.rename(path, away)
        remove_gone(path.parent)


def remove_gone(parent: Path) -> None:
    """Finish what discarding processes that were killed have begun."""
    for path in parent.glob(f"{GONE}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
