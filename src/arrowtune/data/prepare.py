"""From sources to stores: what is there is found, what is missing is made, once, by whoever comes first."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from multiprocessing import current_process
from pathlib import Path
from typing import Any

from arrowtune.data import hosting
from arrowtune.data.config import DataConfig
from arrowtune.data.formats import PRETOKENIZED
from arrowtune.data.identity import Order, changes, may_be_there, with_source
from arrowtune.data.judge import judge
from arrowtune.data.lease import USUAL, Pace
from arrowtune.data.manifest import OF_THIS_MACHINE, manifest_of
from arrowtune.data.merge import Base, merge
from arrowtune.data.pool import Done, encode_by, encode_here
from arrowtune.data.prepared import PreparedStore, PrepareJob, prepared
from arrowtune.data.pretokenized.link import Linker
from arrowtune.data.progress import Progress, Silent
from arrowtune.data.reasons import told
from arrowtune.data.recipe import Recipe
from arrowtune.data.render import RenderSpec
from arrowtune.data.report import Tally
from arrowtune.data.shelf import newest
from arrowtune.data.store import Store, read_manifest
from arrowtune.data.store_format import FolderGone
from arrowtune.data.store_writer import Writer, remove_abandoned
from arrowtune.data.units import Scan, Unit, digest_only, recall
from arrowtune.data.workspace import DIGESTS, STORES, UNITS, finish, finish_left, mark_of, workspace
from arrowtune.errors import StoreError
from arrowtune.fingerprint import Memory, digest_json

__all__ = ["PrepareJob", "PreparedStore", "find_stores", "prepare_sources"]

_SMALL = 2 << 20
"""Sources below so many bytes are prepared in this process: starting workers would take longer."""

_TRIES = 3
"""So often a source is begun again whose workspace somebody removed."""


def prepare_sources(
    jobs: Sequence[PrepareJob],
    spec: RenderSpec,
    data: DataConfig,
    *,
    cache: Path,
    workers: int,
    private: Path | None = None,
    progress: Progress | None = None,
    pace: Pace = USUAL,
) -> list[PreparedStore]:
    """Find or make the store of every source.

    Args:
        jobs: The sources.
        spec: How rows become ids and weights.
        data: The `data` section.
        cache: Where stores, unfinished units and remembered digests are kept.
        workers: Worker processes at most.
        private: Where the stores go instead when they are not to be kept.
        progress: Told of the work.
        pace: How often one who waits for another looks, and when it takes over.

    Returns:
        One entry for each job, in order.

    Raises:
        DataError: A source, its rows, its template, or the cache folder.
    """
    desk = _Desk(spec, data, cache, private, workers, progress or Silent(), pace)
    try:
        return [desk.prepare(job) for job in jobs]
    finally:
        hosting.end_all()
        desk.memory.save()


def find_stores(jobs: Sequence[PrepareJob], spec: RenderSpec, data: DataConfig, *, cache: Path) -> list[Path | None]:
    """The stores that are there already, in the order of the jobs; files are looked at, not read, where they were before.

    Raises:
        SourceError: A source is not there.
    """
    desk = _Desk(spec, data, cache, None, 1, Silent(), USUAL)
    return [desk.find(job) for job in jobs]


class _Desk:
    """What all sources of one call share."""

    def __init__(
        self,
        spec: RenderSpec,
        data: DataConfig,
        cache: Path,
        private: Path | None,
        workers: int,
        progress: Progress,
        pace: Pace,
    ) -> None:
        self._spec, self._data, self._pace = spec, data, pace
        self._root = private or cache
        self._stores = self._root / STORES
        self._anew = data.force_recache or private is not None
        self._workers, self._progress = workers, progress
        self.memory = Memory(self._root / DIGESTS)

    def prepare(self, job: PrepareJob) -> PreparedStore:
        """Find or make one store."""
        started = time.perf_counter()
        order = Order.of(job, self._spec, self.memory)
        path = None if self._anew else self._there(order) or self._there_after_digesting(order)
        reused = path is not None
        if path is None:
            path, reused = self._alone(order, started)
        else:
            finish_left(self._workspace(order, forced=False))
        judge(job.name, read_manifest(path), self._data.max_bad_rows)
        return prepared(job, path, seconds=time.perf_counter() - started, reused=reused)

    def _alone(self, order: Order, started: float) -> tuple[Path, bool]:
        """Make the store, in turn with others who would.

        Whoever finishes first removes the workspace. One who was overtaken there, being silent for too long, begins again
        and finds the store.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._in_turn(order, started)
            except FolderGone:
                self._note(order.job, "another process finished it or cleaned up meanwhile: looking again")
        return self._in_turn(order, started)

    def _in_turn(self, order: Order, started: float) -> tuple[Path, bool]:
        folder = self._workspace(order, forced=self._data.force_recache)

        def waits(holder: str) -> None:
            self._note(order.job, f"{holder} is preparing it: waiting for that one")

        with workspace(folder, root=self._root, waits=waits, about=_about(order), pace=self._pace):
            self.memory.refresh()
            path = None if self._anew else self._there(order)
            reused = path is not None
            path = path or self._make(order, folder, started)
            self.memory.save()
            finish(folder)
        if self._data.force_recache:
            finish_left(self._workspace(order, forced=False))
        return path, reused

    def _workspace(self, order: Order, *, forced: bool) -> Path:
        """Units that were finished before somebody asked for all to be made again are kept apart from those made since."""
        files = [file.state.path for file in order.source.files]
        asked = {"forced": True} if forced else {}
        return self._root / UNITS / digest_json({**order.recipe, "files": files, **asked})

    def find(self, job: PrepareJob) -> Path | None:
        """The store of a source if it is there and its files were digested before."""
        return None if self._anew else self._there(Order.of(job, self._spec, self.memory))

    def _there(self, order: Order) -> Path | None:
        """The store, if the files are as they were when they were last read."""
        known = recall(order.source, order.job.config.limit, self.memory)
        return None if known is None else self._readable(digest_json(with_source(order.recipe, known)))

    def _there_after_digesting(self, order: Order) -> Path | None:
        """The store, if the files are others, or of another time, with the same content."""
        if not may_be_there(self._stores, order.recipe, order.source):
            return None
        known = digest_only(order.source, order.job.config.limit, self.memory)
        return self._readable(digest_json(with_source(order.recipe, known)))

    def _readable(self, identity: str) -> Path | None:
        path = newest(self._stores, identity)
        if path is None:
            return None
        try:
            Store(path)
        except StoreError as error:
            self._progress.note(f"{error.message}; it is made anew")
            return None
        return path

    def _make(self, order: Order, units: Path, started: float) -> Path:
        job, source = order.job, order.source
        if (linked := self._linked(order, units, started)) is not None:
            return linked
        scan = Scan(source, job.config.limit, self.memory)
        recipe = Recipe(self._spec, order.form, job.config.reading(), units)
        self._progress.begin(job.name, source.size)
        try:
            bases, tally = _gather(self._encoded(recipe, iter(scan), source.size), job.name, self._progress)
        finally:
            self._progress.end(job.name)
        parts = with_source(order.recipe, scan.files)
        identity = digest_json(parts)
        manifest = manifest_of(identity, parts, scan.files, tally)
        self._tell(job, tally)
        judge(job.name, manifest, self._data.max_bad_rows)
        if changed := changes(self._stores, job.name, job.role, parts):
            self._note(job, f"prepared anew, since this changed: {', '.join(changed)}")
        with Writer(self._stores / identity, fractional=tally.fractional, mark=mark_of(units)) as writer:
            remove_abandoned(self._stores)
            merge(bases, units, writer, fractional=tally.fractional)
            return writer.publish(manifest, history=self._history(order, tally, started), replace=True)

    def _linked(self, order: Order, units: Path, started: float) -> Path | None:
        """A store that refers to the files of its source; None where they must be converted."""
        job, source = order.job, order.source
        linker = Linker(source, job.config.reading(), self._spec)
        if order.form != PRETOKENIZED or job.config.limit is not None or not linker.possible():
            return None
        tally = linker.tally
        self._progress.begin(job.name, source.size)
        with Writer(self._stores / source.name, fractional=linker.fractional, mark=mark_of(units)) as writer:
            try:
                for rows, tokens in linker.run(writer):
                    self._progress.advance(job.name, 0, rows, tokens, {})
                files = digest_only(source, None, self.memory)
                self._progress.advance(job.name, source.size, 0, 0, tally.skipped)
            finally:
                self._progress.end(job.name)
            parts = with_source(order.recipe, files)
            identity = digest_json(parts)
            manifest = manifest_of(identity, parts, files, tally)
            self._tell(job, tally)
            judge(job.name, manifest, self._data.max_bad_rows)
            links = [{**entry, "digest": file.digest} for entry, file in zip(linker.linked, files, strict=True)]
            remove_abandoned(self._stores)
            history = self._history(order, tally, started)
            path = self._stores / identity
            return writer.publish({**manifest, "linked": links}, history=history, path=path, replace=True)

    def _encoded(self, recipe: Recipe, units: Iterator[Unit], size: int) -> Iterator[Done]:
        # A daemonic process, such as the worker of another pool, may not start processes.
        most = 1 if current_process().daemon else self._workers
        workers = min(most, -(-size // _SMALL))
        # A host that was started ahead has the engine sooner than this process would.
        by_host = workers > 1 or (most > 1 and hosting.waiting())
        return encode_by(workers, recipe, units) if by_host else encode_here(recipe, units)

    def _history(self, order: Order, tally: Tally, started: float) -> dict[str, Any]:
        return {
            **_about(order),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "workers": self._workers,
            "counts": {name: tally.counts[name] for name in OF_THIS_MACHINE},
            "seconds": round(time.perf_counter() - started, 3),
        }

    def _tell(self, job: PrepareJob, tally: Tally) -> None:
        if tally.engine:
            self._note(job, f"the fast token engine was not used: {tally.engine}; slower, the same ids")
        if text := told(tally.counts):
            self._note(job, text)

    def _note(self, job: PrepareJob, text: str) -> None:
        self._progress.note(f"{job.name}: {text}")


def _gather(done: Iterator[Done], name: str, progress: Progress) -> tuple[list[Base], Tally]:
    """Wait for all units; their bases and the tally of the source, in source order."""
    finished: dict[int, tuple[Base, Tally]] = {}
    bases: list[Base] = []
    total = Tally()
    for unit, tally in done:
        progress.advance(name, unit.size, tally.rows_read, tally.tokens, tally.skipped)
        finished[unit.index] = (Base.of(unit), tally)
        while len(bases) in finished:
            base, own = finished.pop(len(bases))
            bases.append(base)
            total.add(own, base.of_pieces())
    return bases, total


def _about(order: Order) -> dict[str, str]:
    """What people know a source by."""
    return {"name": order.job.name, "role": order.job.role, "path": os.path.abspath(order.source.path)}
