"""Which files a source consists of: a file, a folder or a glob on this machine, or a data set of the hub."""

from __future__ import annotations

import difflib
import glob
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from arrowtune.data.sources import hub
from arrowtune.errors import SourceError
from arrowtune.fingerprint import FileState

if TYPE_CHECKING:
    from arrowtune.data.config import SourceConfig

Kind = Literal["jsonl", "json", "parquet", "arrow"]
Compression = Literal["gzip", "zstd"]

TABLES: frozenset[Kind] = frozenset({"parquet", "arrow"})
"""Kinds of files that hold columns, and are not compressed as a whole."""

_KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
KNOWN = ".jsonl, .ndjson, .json (each also .gz or .zst), .parquet, .arrow, .ipc and .feather"

# Files that tools leave beside data; they are never rows.
_METADATA = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
_ONLY = ("", "train")
"""What the one split of a source without splits may be called."""
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source.

    Attributes:
        name: How the file is called in addresses: its path below the source's folder.
        kind: How its rows are laid out, by its suffix.
        compression: How it is compressed, or None.
        state: Its path, size and times when the source was resolved.
    """

    name: str
    kind: Kind
    compression: Compression | None
    state: FileState


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a source, in reading order."""

    name: str
    path: str
    files: tuple[SourceFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files as they are stored."""
        return sum(file.state.size for file in self.files)


def resolve_source(config: SourceConfig, name: str) -> Source:
    """Find the files of a source: a literal path before a glob, sorted, hidden and metadata files left out.

    Raises:
        SourceError: There is nothing there, nothing that can be read, or several kinds of files at once.
    """
    path = os.path.expanduser(config.path)
    if "://" in path:
        scheme = path.split("://", 1)[0]
        raise SourceError(
            f"source {name!r}: {path} is a {scheme} address, and only local files can be read", hint="download it first"
        )
    if os.path.isdir(path):
        path = _split_of(path, config.rows.name, name)
        root, found = path, sorted(_saved(path) or _walk(path), key=_natural)
    elif os.path.exists(path):
        if config.rows.name not in _ONLY:
            raise SourceError(
                f"source {name!r}: {path} has no splits, and {config.rows.name!r} is asked for", hint="leave it out"
            )
        root, found = os.path.dirname(path), [path]
    else:
        found = sorted((entry for entry in glob.glob(path, recursive=True) if os.path.isfile(entry)), key=_natural)
        root = _common_root(found)
        if not found and _may_be_of_the_hub(path):
            suffixes = [*_KINDS, *(f"{kind}{packed}" for kind in _KINDS for packed in _COMPRESSIONS)]
            root, found = hub.fetch(
                path, suffixes, source=name, revision=config.revision, subset=config.subset, split=config.rows.name
            )
    if not found:
        raise _nothing_at(path, name)
    files = tuple(file for entry in found if (file := _describe(entry, root, name)) is not None)
    _check_kinds(files, found, path, name)
    return Source(name, path, files)


def _may_be_of_the_hub(path: str) -> bool:
    """Whether a path that is not there is no mistyped file: its folder is not there either, nor has it a suffix of data."""
    return (
        hub.is_id(path)
        and os.path.splitext(path)[1] not in (*_KINDS, *_COMPRESSIONS)
        and not os.path.isdir(os.path.dirname(path))
    )


def _natural(path: str) -> list[tuple[int, str]]:
    """Orders part-2 before part-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(path)]


def _split_of(folder: str, split: str, name: str) -> str:
    """The folder of one split of a saved `DatasetDict`; the folder itself where it is none.

    Raises:
        SourceError: It is one, and the split is not named or not there.
    """
    listed = os.path.join(folder, "dataset_dict.json")
    if not os.path.isfile(listed):
        if split not in _ONLY:
            raise SourceError(
                f"source {name!r}: {folder} has no splits, and split {split!r} is asked for", hint="leave out split"
            )
        return folder
    try:
        with open(listed, encoding="utf-8") as file:
            splits = [str(entry) for entry in json.load(file)["splits"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(f"source {name!r}: {listed} cannot be read: {error}") from None
    if split not in splits:
        what = "no split is named" if not split else f"there is no split {split!r}"
        raise SourceError(f"source {name!r}: {what}, and {folder} holds {', '.join(splits)}", hint=f"add split: {splits[0]}")
    return os.path.join(folder, split)


def _saved(folder: str) -> list[str]:
    """The files of a `Dataset` that was saved to a folder, which may hold others beside; empty where it is none."""
    try:
        with open(os.path.join(folder, "state.json"), encoding="utf-8") as file:
            return [os.path.join(folder, str(entry["filename"])) for entry in json.load(file)["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _walk(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [entry for entry in folders if not entry.startswith((".", "_"))]
        for entry in names:
            if not entry.startswith((".", "_")) and entry not in _METADATA:
                yield os.path.join(parent, entry)


def _common_root(found: list[str]) -> str:
    folders = [os.path.dirname(os.path.abspath(entry)) for entry in found]
    return os.path.commonpath(folders) if folders else ""


def _describe(path: str, root: str, source: str) -> SourceFile | None:
    stem, suffix = os.path.splitext(path)
    compression = _COMPRESSIONS.get(suffix.lower())
    kind = _KINDS.get(os.path.splitext(stem)[1].lower() if compression else suffix.lower())
    if kind is None or (kind in TABLES and compression):
        return None
    try:
        state = FileState.of(os.path.abspath(path))
    except OSError as error:
        raise SourceError(f"source {source!r}: {path} cannot be read: {error.strerror}") from None
    name = Path(os.path.relpath(os.path.abspath(path), os.path.abspath(root or "."))).as_posix()
    return SourceFile(name, kind, compression, state)


def _check_kinds(files: tuple[SourceFile, ...], found: list[str], path: str, name: str) -> None:
    if not files:
        seen = ", ".join(sorted({os.path.basename(entry) for entry in found})[:3])
        raise SourceError(f"source {name!r}: {path} holds no file that can be read (found {seen})", hint=f"known are {KNOWN}")
    kinds = sorted({file.kind for file in files})
    if len(kinds) > 1:
        raise SourceError(
            f"source {name!r}: {path} holds files of several kinds ({', '.join(kinds)})",
            hint=f"name one of them with a glob, such as {os.path.join(path, '**', '*.' + kinds[0])}",
        )


def _nothing_at(path: str, name: str) -> SourceError:
    if os.path.isdir(path):
        return SourceError(f"source {name!r}: the folder {path} is empty", hint=f"known are {KNOWN}")
    if glob.has_magic(path):
        return SourceError(f"source {name!r}: no file matches {path}", hint="quote the glob and check its folder")
    parent = os.path.dirname(path) or "."
    names = sorted(os.listdir(parent)) if os.path.isdir(parent) else []
    close = difflib.get_close_matches(os.path.basename(path), names, n=1)
    hint = (
        f"did you mean {os.path.join(os.path.dirname(path), close[0])}?" if close else "paths are relative to the current folder"
    )
    return SourceError(f"source {name!r}: there is no file or folder {path}", hint=hint)
