"""Data sets of the Hugging Face hub: which of their files a source is, fetched once and then read from the hub's own cache.

Only data files are fetched, and nothing of a data set is ever executed. What its card says of subsets and splits goes first; else
they are seen from the names of files and folders, as the hub itself does.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arrowtune.errors import SourceError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_CARD = "README.md"
_SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_WORD = re.compile(r"[a-zA-Z]+")


def is_id(path: str) -> bool:
    """Whether a path that is not there could be the id of a data set."""
    return _ID.fullmatch(path) is not None


def fetch(
    repo: str, suffixes: Sequence[str], *, source: str, revision: str | None, subset: str | None, split: str
) -> tuple[str, list[str]]:
    """Fetch the files of a split.

    Args:
        repo: The id of the data set.
        suffixes: Of files that can be read.
        source: The name of the source, for errors.
        revision: Branch, tag or commit.
        subset: The configuration, where there are several.
        split: The split, or "" for `train`, or the only one.

    Returns:
        The folder of the data set in the hub's cache, and the files, in order.

    Raises:
        SourceError: They cannot be fetched and are not in the cache, or there is no such subset or split.
    """
    from huggingface_hub import snapshot_download

    def cached(patterns: list[str], *, offline: bool) -> Path:
        return Path(
            snapshot_download(repo, repo_type="dataset", revision=revision, allow_patterns=patterns, local_files_only=offline)
        )

    try:
        names, online = _names(repo, revision)
        if not online:
            root = cached(["*"], offline=True)
            names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
        data = [name for name in names if name.lower().endswith(tuple(suffixes)) and not name.startswith(".")]
        card = cached([_CARD], offline=not online) / _CARD if _CARD in names else None
        chosen = _choose(data, _configs(card), source, repo, subset, split)
        root = cached(chosen, offline=not online)
    except (OSError, ValueError) as error:  # What huggingface_hub raises for names, access and the network.
        reason = " ".join(str(error).split())[:300]
        raise SourceError(
            f"source {source!r}: there is no file or folder {repo}, and it cannot be fetched from the hub: {reason}",
            hint="check the path; a data set that is not public needs HF_TOKEN, and offline it must have been fetched before",
        ) from None
    return str(root), [os.path.join(root, name) for name in chosen]


def _names(repo: str, revision: str | None) -> tuple[list[str], bool]:
    """The files of a data set, and whether the hub was asked; nothing where it cannot be."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        return sorted(HfApi().list_repo_files(repo, repo_type="dataset", revision=revision)), True
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except OSError:
        return [], False


def _configs(card: Path | None) -> list[Mapping[str, Any]]:
    """What the card says of subsets; nothing where there is no card, or it says nothing."""
    if card is None:
        return []
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    text = card.read_text(encoding="utf-8", errors="replace")
    if not text.startswith("---"):
        return []
    try:
        head = YAML(typ="safe", pure=True).load(text.split("---", 2)[1])
    except YAMLError:
        return []
    found = head.get("configs") if isinstance(head, dict) else None
    return [one for one in found or () if isinstance(one, dict) and one.get("data_files")]


def _choose(
    data: Sequence[str], configs: Sequence[Mapping[str, Any]], source: str, repo: str, subset: str | None, split: str
) -> list[str]:
    if not data:
        raise SourceError(f"source {source!r}: the data set {repo} holds no file that can be read")
    splits = _listed(data, configs, source, repo, subset) if configs else _seen(data, source, repo, subset)
    wanted = split or ("train" if "train" in splits or len(splits) > 1 else next(iter(splits)))
    if not splits.get(wanted):
        raise SourceError(
            f"source {source!r}: {repo} has no split {wanted!r}", hint=f"its splits are {', '.join(splits)}; name one with split"
        )
    return splits[wanted]


def _listed(
    data: Sequence[str], configs: Sequence[Mapping[str, Any]], source: str, repo: str, subset: str | None
) -> dict[str, list[str]]:
    """The files of each split of a subset, as the card lists them."""
    named = {str(one.get("config_name", "default")): one for one in configs}
    first = next((name for name, one in named.items() if one.get("default")), "default" if "default" in named else None)
    wanted = subset or first or (next(iter(named)) if len(named) == 1 else None)
    if wanted not in named:
        what = "no subset is named" if wanted is None else f"there is no subset {wanted!r}"
        raise SourceError(f"source {source!r}: {what}, and {repo} has {', '.join(named)}", hint="name one with subset")
    splits: dict[str, list[str]] = {}
    entries = named[wanted]["data_files"]
    for entry in entries if isinstance(entries, list) else [entries]:
        name, paths = (str(entry["split"]), entry["path"]) if isinstance(entry, dict) else ("train", entry)
        for pattern in paths if isinstance(paths, list) else [paths]:
            splits.setdefault(name, []).extend(sorted(fnmatch.filter(data, str(pattern))))
    return splits


def _seen(data: Sequence[str], source: str, repo: str, subset: str | None) -> dict[str, list[str]]:
    """The files of each split, as their names say; a subset is a folder."""
    if subset is not None:
        data = [name for name in data if subset in name.split("/")[:-1]]
        if not data:
            raise SourceError(f"source {source!r}: {repo} has no folder {subset!r} for that subset")
    splits: dict[str, list[str]] = {}
    for name in data:
        words = {word.lower() for word in _WORD.findall(name)}
        split = next((split for split, spelt in _SPLITS.items() if words & set(spelt)), None)
        splits.setdefault(split or "train", []).append(name)
    return splits
