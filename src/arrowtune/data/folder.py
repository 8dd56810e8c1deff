"""Where stores are kept. Imports next to nothing."""

from __future__ import annotations

import os


def cache_folder(written: str | None) -> tuple[str, str]:
    """The cache folder, and why it is that one.

    Args:
        written: `data.cache_dir` of the run file, or None.
    """
    if written:
        return written, "as written"
    if chosen := os.environ.get("ARROWTUNE_CACHE"):
        return chosen, "ARROWTUNE_CACHE is set"
    if base := os.environ.get("XDG_CACHE_HOME"):
        return os.path.join(base, "arrowtune"), "XDG_CACHE_HOME is set"
    return os.path.join(os.path.expanduser("~"), ".cache", "arrowtune"), "the user's cache folder"
