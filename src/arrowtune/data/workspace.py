"""Where the finished units of one source are kept until its store is published, and who may work there.

One process works in a workspace at a time, so that two that prepare the same data do not do the work twice; a lease beside
the folder says which. Nothing depends on it for being right: units have content names, and units and stores appear by
one rename. Where two work at once after all, the slower one finds its folder gone, and the other's store in its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from arrowtune.data.discard import discard, remove_gone
from arrowtune.data.lease import USUAL, Lease, Pace
from arrowtune.data.store_format import disk_error
from arrowtune.data.store_writer import TEMPORARY

UNITS, STORES, DIGESTS = "units", "stores", "digests"
"""The folders of the cache."""

ABOUT = "about.json"
"""Says in a workspace what source its units are of."""

_LEASE = ".lease"


def lease_of(folder: Path) -> Path:
    """The file beside a workspace that says who works there."""
    return folder.with_name(f"{folder.name}{_LEASE}")


@contextmanager
def workspace(
    folder: Path, *, root: Path, waits: Callable[[str], None], about: Mapping[str, str], pace: Pace = USUAL
) -> Iterator[Path]:
    """Have a workspace to oneself; it stays for the next start unless `finish` removes it.

    Args:
        folder: The workspace, made where it is missing.
        root: The cache folder, for the error.
        waits: Called when another process works there, with words for people on which.
        about: Of the source; kept beside the units for people.
        pace: How often the lease is changed and looked at.

    Raises:
        StoreError: The disk refuses.
    """
    lease = Lease(lease_of(folder), pace)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lease.acquire(waits)
    except OSError as error:
        raise disk_error(error, root) from None
    with lease.kept():
        try:
            folder.mkdir(exist_ok=True)
            (folder / ABOUT).write_text(json.dumps(dict(about)), encoding="utf-8")
        except OSError as error:
            raise disk_error(error, root) from None
        for parent, pattern in ((folder, "*"), (root / STORES, f"{mark_of(folder)}*")):
            # Whoever wrote it is gone, or was silent for so long that it has to begin again.
            for torn in parent.glob(f"{TEMPORARY}{pattern}"):
                discard(torn)
        yield folder


def mark_of(folder: Path) -> str:
    """What the names of stores begin with that are built of a workspace's units."""
    return f"{folder.name[:16]}-"


def finish(folder: Path) -> None:
    """Remove a workspace whose units are all in a store."""
    discard(folder)


def finish_left(folder: Path) -> None:
    """Remove a workspace that was left between the publishing of its store and `finish`, unless somebody works there."""
    lease = Lease(lease_of(folder))
    try:
        if (folder.exists() or lease.path.exists()) and lease.try_acquire():
            with lease.kept():
                finish(folder)
        remove_gone(folder.parent)
    except OSError:
        return  # A cache that cannot be written keeps what it has.
