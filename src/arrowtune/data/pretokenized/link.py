"""Serving pretokenized Arrow files where they lie: every value is checked once, and a store of some bytes a row names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowtune.data.pretokenized.check import Checked, check
from arrowtune.data.pretokenized.columns import Columns, choose
from arrowtune.data.render import RenderSpec
from arrowtune.data.report import Tally
from arrowtune.data.sources import Source, SourceFile
from arrowtune.data.store_mapped import MappedFile, NotFlat
from arrowtune.data.store_writer import Writer
from arrowtune.errors import RenderError, SourceError
from arrowtune.types import Origin

_SLICE_TOKENS = 1 << 21
"""Tokens that are checked at a time: what it takes beside the mapped file is bounded by this, or by one row."""

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Linker:
    """Checks the files of a source and measures their rows.

    Args:
        source: The files.
        reading: What is known of their columns; see `SourceConfig.reading`.
        spec: Names the vocabulary, `max_length` and what becomes of longer rows.

    Attributes:
        linked: One entry for each file, for the manifest.
        tally: What became of the rows.
        fractional: Whether their loss weights are floats; known once it was asked whether this is possible.
    """

    source: Source
    reading: Mapping[str, str | None]
    spec: RenderSpec
    linked: list[dict[str, Any]] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    fractional: bool = False

    def possible(self) -> bool:
        """Whether every file is Arrow IPC whose columns lie in it as plain numbers.

        Raises:
            SourceError: A file cannot be read.
            FormatError: The columns are not those of pretokenized rows.
        """
        if any(file.kind != "arrow" for file in self.source.files):
            return False
        try:
            kinds = [self._open(file)[1].kind for file in self.source.files]
        except NotFlat:
            return False
        self.fractional = "weights" in kinds
        return True

    def run(self, writer: Writer) -> Iterator[tuple[int, int]]:
        """Check everything.

        Args:
            writer: Gains the lengths and sums of the rows that are examples.

        Yields:
            Rows and tokens, after each slice that was checked.

        Raises:
            FormatError: A row is not as it must be; names it.
            RenderError: A row is too long and that is an error.
        """
        for number, file in enumerate(self.source.files):
            mapped, columns = self._open(file)
            self.tally.read.append(0)
            self.tally.kept.append(0)
            first = sum(self.tally.read)
            for batch in mapped.batches:
                for part in _slices(batch.select(columns.names()), columns.ids):
                    row = self.tally.read[number]
                    checked = check(part, columns, self.spec.id_limit, partial(_origin, file.name, row))
                    tokens = self._measure(checked, number, first + row, writer, file.name)
                    self.tally.read[number] += part.num_rows
                    yield part.num_rows, tokens
            weights = "" if columns.kind == "all" else columns.mask
            self.linked.append(
                {
                    "path": file.state.path,
                    "size": file.state.size,
                    "mtime_ns": file.state.mtime_ns,
                    "rows": self.tally.read[number],
                    "ids": columns.ids,
                    "weights": weights,
                }
            )
        self.tally.sort()

    def _open(self, file: SourceFile) -> tuple[MappedFile, Columns]:
        try:
            with pa.memory_map(file.state.path) as mapped:
                names = _schema(mapped).names
            columns = choose(names, self.reading, file.name)
            if columns.kind == "labels":
                raise NotFlat("labels are no weights")
            return MappedFile(Path(file.state.path), columns.ids, columns.mask), columns
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise SourceError(f"{file.state.path} cannot be read as Arrow IPC: {reason}") from None

    def _measure(self, checked: Checked, number: int, first: int, writer: Writer, name: str) -> int:
        """Hand the measures of a slice to the writer; how many tokens it keeps."""
        offsets, limit = checked.ids.offsets, self.spec.max_length
        whole = np.diff(offsets)
        lengths = np.minimum(whole, limit)
        over = whole > limit
        if self.spec.overlong == "raise" and over.any():
            row = int(np.argmax(over))
            raise RenderError(
                f"{Origin(name, self.tally.read[number] + row)} has {whole[row]} tokens, more than data.max_length {limit}",
                hint="raise data.max_length, or set data.overlong to truncate or drop",
            )
        trained, sums = _trained(checked, lengths)
        keep = trained > 0
        if self.spec.overlong == "drop":
            keep &= ~over
        for row in np.flatnonzero(~keep).tolist():
            reason = ("overlong" if self.spec.overlong == "drop" else "truncated_away") if over[row] else "no_trained_tokens"
            detail = f"{whole[row]} tokens" if over[row] else ""
            self.tally.skip(number, self.tally.read[number] + row, None, reason, detail)
        self.tally.counts.update(Counter(truncated=int((over & keep).sum())))
        self.tally.kept[number] += int(keep.sum())
        tokens = int(lengths[keep].sum())
        self.tally.tokens += tokens
        self.tally.trained_tokens += int(trained[keep].sum())
        writer.measured(lengths[keep], trained[keep], sums[keep], first + np.flatnonzero(keep), whole=bool(keep.all()))
        return tokens


def _origin(name: str, first: int, row: int) -> Origin:
    return Origin(name, first + row)


def _trained(checked: Checked, lengths: Ints) -> tuple[Ints, npt.NDArray[np.float64]]:
    """How many positions of each row are trained, and the sum of their weights; the first never counts."""
    if checked.mask is None:
        trained = np.maximum(lengths - 1, 0)
        return trained, trained.astype(np.float64)
    starts, values = checked.mask.offsets[:-1] + 1, checked.mask.values
    stops = np.maximum(checked.mask.offsets[:-1] + lengths, starts)
    if values.dtype.kind != "f":
        trained = _sums(values, starts, stops, np.dtype(np.int64))
        return trained, trained.astype(np.float64)
    return _sums(values > 0, starts, stops, np.dtype(np.int64)), _sums(values, starts, stops, np.dtype(np.float64))


def _sums(values: npt.NDArray[Any], starts: Ints, stops: Ints, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The sum of `values[start:stop]` for every pair."""
    out = np.zeros(len(starts), dtype)
    there = np.flatnonzero(stops > starts)
    if len(there):
        bounds = np.stack([starts[there], stops[there]], axis=1).ravel()
        ends = bounds[-1] == len(values)  # An index may not be the end.
        out[there] = np.add.reduceat(values, bounds[:-1] if ends else bounds, dtype=dtype)[::2]
    return out


def _slices(batch: pa.RecordBatch, ids: str) -> Iterator[pa.RecordBatch]:
    """A batch in runs of rows of about so many tokens."""
    if not batch.num_rows:
        return
    each = max(1, len(batch.column(ids).values) // batch.num_rows)
    rows = max(1, _SLICE_TOKENS // each)
    yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _schema(mapped: pa.MemoryMappedFile) -> pa.Schema:
    try:
        return pa.ipc.open_file(mapped).schema
    except pa.ArrowInvalid:
        mapped.seek(0)
        return pa.ipc.open_stream(mapped).schema
