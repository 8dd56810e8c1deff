"""From sources to stores: what is there is found, what is missing is made, once, by whoever comes first."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arrowtune.data.config import DataConfig, SourceConfig
from arrowtune.data.encode import Recipe
from arrowtune.data.formats import detect_format
from arrowtune.data.merge import Base, forget, merge
from arrowtune.data.pool import Done, encode_by, encode_here
from arrowtune.data.progress import Progress, Silent
from arrowtune.data.render import RenderSpec
from arrowtune.data.report import BAD_ROW, Place, Tally, skips_of, summary
from arrowtune.data.sources import Source, parse, resolve_source
from arrowtune.data.store import Store, read_manifest
from arrowtune.data.store_format import HISTORY, MANIFEST, STORE_VERSION, disk_error
from arrowtune.data.store_writer import Writer, remove_abandoned
from arrowtune.data.units import Scan, Scanned, Unit, recall
from arrowtune.errors import EmptyDataset, FormatError, RenderError, StoreError
from arrowtune.fingerprint import Memory, differences, digest_json

_SMALL = 2 << 20
"""Sources below so many bytes are prepared in this process: starting workers would take longer."""

_UNPROVED = ("spans_unproved", "no_end_of_turn", "template_error")


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

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def prepare_sources(
    jobs: Sequence[PrepareJob],
    spec: RenderSpec,
    data: DataConfig,
    *,
    cache: Path,
    workers: int,
    private: Path | None = None,
    progress: Progress | None = None,
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

    Returns:
        One entry for each job, in order.

    Raises:
        DataError: A source, its rows, its template, or the cache folder.
    """
    desk = _Desk(spec, data, cache, private, workers, progress or Silent())
    try:
        return [desk.prepare(job) for job in jobs]
    finally:
        desk.memory.save()


def find_stores(jobs: Sequence[PrepareJob], spec: RenderSpec, data: DataConfig, *, cache: Path) -> list[Path | None]:
    """The stores that are there already, in the order of the jobs; files are looked at, not read, where they were before.

    Raises:
        SourceError: A source is not there.
    """
    desk = _Desk(spec, data, cache, None, 1, Silent())
    return [desk.find(job) for job in jobs]


class _Desk:
    """What all sources of one call share."""

    def __init__(
        self, spec: RenderSpec, data: DataConfig, cache: Path, private: Path | None, workers: int, progress: Progress
    ) -> None:
        self._spec, self._data = spec, data
        self._cache, self._stores = cache, private or cache / "stores"
        self._fresh = data.force_recache or private is not None
        self._workers, self._progress = workers, progress
        self.memory = Memory(cache / "digests")

    def prepare(self, job: PrepareJob) -> PreparedStore:
        """Find or make one store."""
        started = time.perf_counter()
        if (store := self.find(job)) is not None:
            return _prepared(job, store, seconds=time.perf_counter() - started, reused=True)
        source = resolve_source(job.config, job.name)
        path = self._make(job, source, self._format(job, source), started)
        return _prepared(job, path, seconds=time.perf_counter() - started, reused=False)

    def find(self, job: PrepareJob) -> Path | None:
        """The store of a source if it is there and its files were digested before."""
        source = resolve_source(job.config, job.name)
        known = None if self._fresh else recall(source, job.config.limit, self.memory)
        if known is None:
            return None
        path = self._stores / digest_json(self._parts(job, self._format(job, source), known))
        if not (path / MANIFEST).exists():
            return None
        try:
            Store(path)
        except StoreError as error:
            self._progress.note(f"{error.message}; it is made anew")
            shutil.rmtree(path, ignore_errors=True)
            return None
        return path

    def _format(self, job: PrepareJob, source: Source) -> str:
        if job.config.format != "auto":
            return job.config.format
        question = f"format {sorted(job.config.columns.items())}"
        for file in source.files:
            if isinstance(found := self.memory.recall(file.state, question), str):
                return found
        columns, number = first_columns(source)
        form = detect_format(columns, job.config.columns, f"source {job.name!r}")
        self.memory.learn(source.files[number].state, question, form)
        return form

    def _parts(self, job: PrepareJob, form: str, files: Sequence[Scanned]) -> dict[str, str]:
        """Everything that decides a store's content, by name."""
        content = [[file.name, file.digest, file.rows] for file in files]
        return {
            "source": digest_json(content),
            "format": form,
            "columns": digest_json(dict(job.config.columns)),
            "max_bad_rows": str(self._data.max_bad_rows),
            "store_version": str(STORE_VERSION),
            **self._spec.identity(),
        }

    def _make(self, job: PrepareJob, source: Source, form: str, started: float) -> Path:
        spec = self._checked_spec(form)
        units = self._cache / "units" / digest_json({**spec.identity(), "format": form, "columns": dict(job.config.columns)})
        try:
            units.mkdir(parents=True, exist_ok=True)
            self._stores.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(error, self._cache) from None
        remove_abandoned(self._stores)
        scan = Scan(source, job.config.limit, self.memory)
        recipe = Recipe(spec, form, job.config.columns, units)
        self._progress.begin(job.name, source.size)
        bases, tally = _gather(self._encoded(recipe, iter(scan), source.size), job.name, self._progress)
        self._progress.end(job.name)
        names = [file.name for file in source.files]
        self._check(job, form, tally, names)
        parts = self._parts(job, form, scan.files)
        identity = digest_json(parts)
        self._say_why(job, parts)
        with Writer(self._stores / identity, fractional=tally.fractional) as writer:
            merge(bases, units, writer, fractional=tally.fractional)
            history = {
                "name": job.name,
                "role": job.role,
                "path": source.path,
                "seconds": time.perf_counter() - started,
                "workers": self._workers,
            }
            manifest = _manifest(identity, parts, scan.files, tally, names)
            path = writer.publish(manifest, history=history, replace=self._fresh)
        forget(bases, units)
        return path

    def _checked_spec(self, form: str) -> RenderSpec:
        """The specification with the engine chosen, after the template was looked at."""
        from arrowtune.data.render import Renderer

        renderer = Renderer(self._spec)
        if form != "prompt_completion":
            renderer.check_template()
        return self._spec.with_engine(renderer.engine.fast)

    def _encoded(self, recipe: Recipe, units: Iterator[Unit], size: int) -> Iterator[Done]:
        workers = min(self._workers, -(-size // _SMALL))
        return encode_by(workers, recipe, units) if workers > 1 else encode_here(recipe, units)

    def _check(self, job: PrepareJob, form: str, tally: Tally, names: list[str]) -> None:
        bad = tally.skipped[BAD_ROW]
        if bad > self._data.max_bad_rows * tally.rows_read:
            shown = "".join(f"\n  {skip.origin}: {skip.detail}" for skip in skips_of(_only(tally, BAD_ROW), names))
            raise FormatError(
                f"source {job.name!r}: {bad} of {tally.rows_read} rows are not of the format {form}, "
                f"more than data.max_bad_rows={self._data.max_bad_rows:g} allows:{shown}",
                hint="mend them, name the right format, or raise data.max_bad_rows",
            )
        if tally.rows:
            return
        unproved = {reason: places for reason, places in tally.places.items() if reason in _UNPROVED}
        if tally.rows_read and sum(tally.skipped[reason] for reason in unproved) == tally.rows_read:
            first = skips_of(unproved, names)[0]
            raise RenderError(
                f"source {job.name!r}: the chat template proves the trained spans of no row; "
                f"the first is {first.origin}: {first.detail or first.reason}",
                hint="set tokenizer.chat_template to a template with {% generation %} tags around the assistant's words",
            )
        raise EmptyDataset(
            f"source {job.name!r}: no row can be trained on ({summary(tally)})",
            hint="arrowtune show RUN --skipped shows the rows and why",
        )

    def _say_why(self, job: PrepareJob, parts: Mapping[str, str]) -> None:
        """Name what changed against the nearest store of a source of this name."""
        nearest: list[str] | None = None
        for folder in self._stores.iterdir() if self._stores.is_dir() else ():
            try:
                history = read_history(folder)
                if (history.get("name"), history.get("role")) != (job.name, job.role):
                    continue
                changed = differences(read_manifest(folder)["parts"], parts)
            except (StoreError, KeyError):
                continue
            if changed and (nearest is None or len(changed) < len(nearest)):
                nearest = changed
        if nearest:
            self._progress.note(f"{job.name}: prepared anew, since this changed: {', '.join(nearest)}")


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


def _manifest(
    identity: str, parts: Mapping[str, str], files: Sequence[Scanned], tally: Tally, names: list[str]
) -> dict[str, Any]:
    skipped = [
        {"reason": skip.reason, "file": skip.origin.file, "row": skip.origin.row, "line": skip.origin.line, "detail": skip.detail}
        for skip in skips_of(tally.places, names)
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
        "skipped": dict(sorted(tally.skipped.items())),
        "skipped_rows": skipped,
        "counts": dict(sorted(tally.counts.items())),
    }


def _prepared(job: PrepareJob, path: Path, *, seconds: float, reused: bool) -> PreparedStore:
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


def read_history(folder: Path) -> dict[str, Any]:
    """When, where and how a store was made; empty where that is not known."""
    import json

    try:
        found = json.loads((folder / HISTORY).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def first_columns(source: Source) -> tuple[list[str], int]:
    """The columns of the first rows of a source, and the index of the file they are in.

    Raises:
        EmptyDataset: No file holds a row.
    """
    for unit in Scan(source, None):
        for piece in unit.pieces:
            columns: dict[str, None] = {}
            for raw in parse(piece, piece.load()):
                if raw.record is not None:
                    columns.update(dict.fromkeys(raw.record))
                if raw.row >= 20 and columns:
                    break
            if columns:
                return list(columns), piece.file
    raise EmptyDataset(f"source {source.name!r}: {source.path} holds no rows", hint="check the path, or leave the source out")


def _only(tally: Tally, reason: str) -> dict[str, list[Place]]:
    return {reason: tally.places.get(reason, [])}
