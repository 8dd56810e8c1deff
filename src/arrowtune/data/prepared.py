"""What is asked of `prepare`, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arrowtune.data.store import read_manifest

if TYPE_CHECKING:
    from arrowtune.data.config import SourceConfig


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """One source to prepare: its section of the run file, its name, and its role, `train` or `eval`."""

    config: SourceConfig
    name: str
    role: str


@dataclass(frozen=True, slots=True)
class PreparedStore:
    """A store and how it came to be; the object that `prepare --json` prints for each source.

    Attributes:
        name, role: Of the source.
        path: The store's folder.
        identity: A digest of everything that decides its content.
        rows_read, rows: Raw rows, and examples made of them.
        skipped: Rows not used, by reason.
        tokens, trained_tokens: Of the examples.
        reused: Whether the store was there.
        seconds: Wall time of finding or making it.
        tokens_per_second: Of making it; 0 where it was there.
    """

    name: str
    role: str
    path: str
    identity: str
    rows_read: int
    rows: int
    skipped: Mapping[str, int]
    tokens: int
    trained_tokens: int
    reused: bool
    seconds: float
    tokens_per_second: float

    @property
    def store_path(self) -> Path:
        """The store's folder."""
        return Path(self.path)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def prepared(job: PrepareJob, path: Path, *, seconds: float, reused: bool) -> PreparedStore:
    """The entry of a store that is there.

    Args:
        job: The source it was found or made for.
        path: The store.
        seconds: Wall time of finding or making it.
        reused: Whether it was there.
    """
    manifest = read_manifest(path)
    return PreparedStore(
        name=job.name,
        role=job.role,
        path=str(path),
        identity=manifest["identity"],
        rows_read=manifest["rows_read"],
        rows=manifest["rows"],
        skipped=manifest["skipped"],
        tokens=manifest["tokens"],
        trained_tokens=manifest["trained_tokens"],
        reused=reused,
        seconds=seconds,
        tokens_per_second=0.0 if reused or not seconds else manifest["tokens"] / seconds,
    )
