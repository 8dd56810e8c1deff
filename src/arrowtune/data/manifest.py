"""The manifest of a store, from what the scan and the tally say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arrowtune.data.report import Tally
from arrowtune.data.units import Scanned

OF_THIS_MACHINE = ("reference_engine",)
"""Counts that depend on what is installed here, and say nothing about the store's content."""


def manifest_of(identity: str, parts: Mapping[str, str], files: Sequence[Scanned], tally: Tally) -> dict[str, Any]:
    """What a store says of itself beside what its writer counts: nothing in it depends on when, where and how it was made."""
    skipped = [
        {"reason": skip.reason, "file": skip.origin.file, "row": skip.origin.row, "line": skip.origin.line, "detail": skip.detail}
        for skip in tally.skips([file.name for file in files])
    ]
    counts = zip(tally.read + [0] * len(files), tally.kept + [0] * len(files), strict=True)
    sources = [
        {"name": file.name, "kind": file.kind, "size": file.size, "digest": file.digest, "rows_read": read, "rows": kept}
        for file, (read, kept) in zip(files, counts, strict=False)
    ]
    return {
        "identity": identity,
        "parts": dict(parts),
        "sources": sources,
        "rows_read": tally.rows_read,
        "rows": tally.rows,
        "skipped": dict(sorted(tally.skipped.items())),
        "skipped_rows": skipped,
        "counts": {name: count for name, count in sorted(tally.counts.items()) if name not in OF_THIS_MACHINE},
    }
