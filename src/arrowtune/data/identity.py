"""What a store's content follows from: named parts, their digest, and what differs between two stores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arrowtune.data.formats import detect_format
from arrowtune.data.judge import too_many_bad_rows
from arrowtune.data.prepared import PrepareJob
from arrowtune.data.render import RenderSpec
from arrowtune.data.report import Tally
from arrowtune.data.sources import Source, parse, resolve_source
from arrowtune.data.store import read_manifest
from arrowtune.data.store_format import HISTORY, STORE_VERSION
from arrowtune.data.units import Scan, Scanned
from arrowtune.errors import EmptyDataset, StoreError
from arrowtune.fingerprint import Memory, differences, digest_json

if TYPE_CHECKING:
    from arrowtune.data.config import SourceConfig

_FIRST_ROWS = 20


@dataclass(frozen=True, slots=True)
class Order:
    """One source with what decides its store, its content left out.

    Attributes:
        job: What was asked for.
        source: Its files.
        form: The format of its rows.
        recipe: See `recipe_parts`.
    """

    job: PrepareJob
    source: Source
    form: str
    recipe: Mapping[str, str]

    @classmethod
    def of(cls, job: PrepareJob, spec: RenderSpec, memory: Memory) -> Order:
        """Look at the files of a source, and into one of them where its format is not known.

        Raises:
            DataError: There is nothing that can be read.
        """
        source = resolve_source(job.config, job.name)
        form = format_of(job.config, source, memory)
        return cls(job, source, form, recipe_parts(job.config, form, spec))


def recipe_parts(config: SourceConfig, form: str, spec: RenderSpec) -> dict[str, str]:
    """Everything but the content of the source that decides a store's content, by name.

    Neither the names and places of files nor anything about this machine is among them.
    """
    return {
        "format": form,
        "columns": digest_json(config.reading()),
        "limit": "" if config.limit is None else str(config.limit),
        "store_version": str(STORE_VERSION),
        **spec.identity_of(form),
    }


def with_source(recipe: Mapping[str, str], files: Sequence[Scanned]) -> dict[str, str]:
    """All parts of the identity: the recipe, and the digests of the files in reading order."""
    return {"source": digest_json([[file.kind, file.digest, file.rows] for file in files]), **recipe}


def format_of(config: SourceConfig, source: Source, memory: Memory) -> str:
    """The format that the source names, else the one that its first rows have; remembered, so that a warm start reads no file.

    Raises:
        DataError: There are no rows, or no format reads them.
    """
    if config.format != "auto":
        return config.format
    question = f"format, columns {sorted(config.columns.items())}, version {STORE_VERSION}"
    for file in source.files:
        if isinstance(found := memory.recall(file.state, question), str):
            return found
    columns, number = first_columns(source)
    form = detect_format(columns, config.columns, f"source {source.name!r} in {source.files[number].state.path}")
    if (state := source.files[number].state).settled():
        memory.learn(state, question, form)
    return form


def first_columns(source: Source) -> tuple[list[str], int]:
    """The columns of the first rows of a source, and the index of the file they are in.

    Raises:
        EmptyDataset: No file holds a row.
        FormatError: No file holds a row that can be read.
    """
    tally = Tally(read=[0] * len(source.files), kept=[0] * len(source.files))
    for unit in Scan(source, None):
        for piece in unit.pieces:
            columns: dict[str, None] = {}
            for raw in parse(piece, piece.load()):
                if raw.record is None:
                    line = None if piece.line is None else piece.line + raw.line
                    tally.skip_bad(piece.file, piece.row + raw.row, line, raw.fault)
                else:
                    columns.update(dict.fromkeys(raw.record))
                if raw.row >= _FIRST_ROWS and columns:
                    break
            if columns:
                return list(columns), piece.file
    if tally.skipped:
        raise too_many_bad_rows(source.name, tally.skips([file.name for file in source.files]), tally.rows_read)
    raise EmptyDataset(f"source {source.name!r}: {source.path} holds no rows", hint="check the path, or leave the source out")


def may_be_there(stores: Path, recipe: Mapping[str, str], source: Source) -> bool:
    """Whether a store of the same recipe was made of files of the same sizes, so that digesting them first is worth it."""
    sizes = [file.state.size for file in source.files]
    for _, manifest in manifests(stores):
        theirs = [file["size"] for file in manifest["sources"]]
        same_files = theirs == (sizes[: len(theirs)] if recipe["limit"] else sizes)
        if same_files and {**manifest["parts"], "source": ""} == {**recipe, "source": ""}:
            return True
    return False


def changes(stores: Path, name: str, role: str, parts: Mapping[str, str]) -> list[str]:
    """The parts that differ from the nearest store that was made for a source of this name; empty where there is none."""
    nearest: list[str] = []
    for folder, manifest in manifests(stores):
        history = read_history(folder)
        if (history.get("name"), history.get("role")) == (name, role):
            changed = differences(manifest["parts"], parts)
            if changed and (not nearest or len(changed) < len(nearest)):
                nearest = changed
    return nearest


def read_history(folder: Path) -> dict[str, Any]:
    """When, where and how a store was made; empty where that is not known."""
    try:
        found = json.loads((folder / HISTORY).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def manifests(stores: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every store of a cache that this version reads, with its manifest."""
    for folder in sorted(stores.iterdir()) if stores.is_dir() else ():
        try:
            manifest = read_manifest(folder)
        except StoreError:
            continue  # Being built, torn, or of another version.
        yield folder, manifest
