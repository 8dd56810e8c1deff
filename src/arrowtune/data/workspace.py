"""Where the finished units of one source are kept until its store is published, and who may work there.

One process works in a workspace at a time, so that two that prepare the same data do not do the work twice. Nothing
depends on that lock for being right: units have content names, and units and stores appear by one rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from arrowtune.data.store_format import disk_error


@contextmanager
def workspace(folder: Path, *, root: Path, waits: Callable[[], None]) -> Iterator[Path]:
    """Have a workspace to oneself; it stays for the next start unless `finish` removes it.

    Args:
        folder: The workspace, made where it is missing.
        root: The cache folder, for the error.
        waits: Called when another process works there.

    Raises:
        StoreError: The disk refuses.
    """
    try:
        descriptor = _locked(folder, waits)
    except OSError as error:
        raise disk_error(error, root) from None
    try:
        for torn in folder.glob(".tmp-*"):
            # Whoever wrote it is gone: it held the lock that is ours now.
            torn.unlink(missing_ok=True)
        yield folder
    finally:
        os.close(descriptor)


def finish(folder: Path) -> None:
    """Remove a workspace whose units are all in a store."""
    shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path, waits: Callable[[], None]) -> int:
    """A descriptor of the folder that holds its lock; released by the kernel when the process ends in any way."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            return descriptor  # A file system without locks: both work, and the first to publish is kept.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(folder).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)  # It was finished and removed while we waited.
