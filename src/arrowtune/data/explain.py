"""Why a store is found or made: what the identity follows from, beside that of the nearest store that is there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from arrowtune.data.config import DataConfig
from arrowtune.data.identity import Order, manifests, read_history, with_source
from arrowtune.data.prepared import PrepareJob
from arrowtune.data.render import RenderSpec
from arrowtune.data.shelf import newest
from arrowtune.data.store import Store
from arrowtune.data.units import Scanned, digest_only
from arrowtune.data.workspace import DIGESTS, STORES
from arrowtune.errors import StoreError
from arrowtune.fingerprint import Memory, differences, digest_json


@dataclass(frozen=True, slots=True)
class Difference:
    """An input of the identity that is another one now.

    Attributes:
        input: Its name: `chat_template`, `max_length`, `source`, ...
        was: Its value, or a digest of it, where the nearest store was made; empty where there was none.
        now: The same for the run as it is.
        files: For `source`: one clause for each file that differs.
    """

    input: str
    was: str
    now: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `prepare` would do with a source, and why.

    Attributes:
        name, role: Of the source.
        identity: What its store is called.
        inputs: Everything that decides the identity, by name: values, and digests of what is long.
        store: The store that is there, or None.
        reused: Whether it would be taken.
        because: One clause.
        nearest: Where there is no store of this identity: the one that differs in the fewest inputs, or None.
        differs: In what.
    """

    name: str
    role: str
    identity: str
    inputs: Mapping[str, str]
    store: str | None
    reused: bool
    because: str
    nearest: str | None = None
    differs: tuple[Difference, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def explain_sources(jobs: Sequence[PrepareJob], spec: RenderSpec, data: DataConfig, *, cache: Path) -> list[Explanation]:
    """Say for every source whether its store is there, and if not what is different. Files are digested, nothing is prepared.

    Raises:
        DataError: A source cannot be read.
    """
    memory = Memory(cache / DIGESTS)
    try:
        return [_explain(Order.of(job, spec, memory), data, cache / STORES, memory) for job in jobs]
    finally:
        memory.save()


def _explain(order: Order, data: DataConfig, stores: Path, memory: Memory) -> Explanation:
    files = digest_only(order.source, order.job.config.limit, memory)
    parts = with_source(order.recipe, files)
    identity = digest_json(parts)
    found = newest(stores, identity)
    fault = _fault(found)
    because = _because(data, found, fault)
    made = Explanation(
        name=order.job.name,
        role=order.job.role,
        identity=identity,
        inputs=dict(sorted(parts.items())),
        store=None if found is None else str(found),
        reused=not because,
        because=because or "its store is there",
    )
    return made if found is not None else _compared(made, order, files, stores)


def _because(data: DataConfig, found: Path | None, fault: str) -> str:
    """Why the store is not taken; empty where it is."""
    if data.disable_cache:
        return "data.disable_cache keeps every store in the run's folder"
    if data.force_recache:
        return "data.force_recache makes every store again"
    return "no store of this source was made so far" if found is None else fault


def _fault(found: Path | None) -> str:
    if found is not None:
        try:
            Store(found)
        except StoreError as error:
            return error.message
    return ""


def _compared(made: Explanation, order: Order, files: Sequence[Scanned], stores: Path) -> Explanation:
    """The explanation with what differs from the nearest store of the same source: of its name, its place, or its content."""
    parts, place = dict(made.inputs), os.path.abspath(order.source.path)
    best: tuple[tuple[int, bool, float], Path, Mapping[str, Any]] | None = None
    for folder, manifest in manifests(stores):
        history = read_history(folder)
        named = (history.get("name"), history.get("role")) == (made.name, made.role)
        if not (named or history.get("path") == place or manifest["parts"]["source"] == parts["source"]):
            continue
        rank = (len(differences(manifest["parts"], parts)), not named, -folder.stat().st_mtime)
        if best is None or rank < best[0]:
            best = (rank, folder, manifest)
    if best is None:
        return made
    _, nearest, theirs = best
    differs = tuple(
        Difference(
            name,
            theirs["parts"].get(name, ""),
            parts.get(name, ""),
            _files_that_differ(theirs, parts, files) if name == "source" else (),
        )
        for name in differences(theirs["parts"], parts)
    )
    because = made.because if made.because.startswith("data.") else "the nearest store was made otherwise"
    return replace(made, because=because, nearest=str(nearest), differs=differs)


def _files_that_differ(theirs: Mapping[str, Any], parts: Mapping[str, str], files: Sequence[Scanned]) -> tuple[str, ...]:
    if theirs["parts"].get("limit") != parts["limit"]:
        return ("other rows are taken",)  # The digests are of those alone.
    before = {entry["name"]: entry["digest"] for entry in theirs["sources"]}
    after = {file.name: file.digest for file in files}
    found = [f"{name} has other content" for name in after if name in before and before[name] != after[name]]
    found += [f"{name} is new" for name in after if name not in before]
    found += [f"{name} is gone" for name in before if name not in after]
    return tuple(found)
