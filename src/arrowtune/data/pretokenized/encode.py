"""Units of pretokenized rows: checked and laid out as arrays, with no Python object for a token or, in tables, for a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Thread

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowtune.data.encode import UnitEncoder
from arrowtune.data.formats.pretokenized import as_batch
from arrowtune.data.pretokenized.check import Checked, check
from arrowtune.data.pretokenized.columns import choose
from arrowtune.data.render.fit import fit, without_first
from arrowtune.data.report import BAD_ROW, Tally
from arrowtune.data.sources import Piece, parse, read_table
from arrowtune.data.unit_file import write_unit
from arrowtune.data.units import Unit
from arrowtune.errors import FormatError
from arrowtune.protocols import Tokens
from arrowtune.types import Origin, Record

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of a piece.

    Attributes:
        tokens: The examples.
        rows, lines: int64[n], where in the piece each is.
    """

    tokens: Tokens
    rows: Rows
    lines: Rows


class PretokenizedEncoder(UnitEncoder):
    """Takes the place of `UnitEncoder` where rows are ids already."""

    def load(self) -> Thread | None:
        """No token engine is needed."""
        return None

    def run(self, unit: Unit) -> Tally:
        """Check a unit and write it into its file, unless an earlier run has.

        Raises:
            FormatError: A row is not as it must be; names it.
            RenderError: A row is too long and that is an error.
            StoreError: The disk refuses.
            SourceError: A file changed since it was cut.
        """
        if (found := self.found(unit)) is not None:
            return found
        count = len(unit.pieces)
        tally = Tally(read=[0] * count, kept=[0] * count)
        parts = [self._part(piece, index, tally) for index, piece in enumerate(unit.pieces)]
        places = [
            (index, row, line)
            for index, part in enumerate(parts)
            for row, line in zip(part.rows.tolist(), part.lines.tolist(), strict=True)
        ]
        origins = _Origins(unit.pieces, places)
        encoded = fit(origins, np.arange(len(places)), _together(parts), [], Counter(), self._recipe.spec)
        self._account(encoded, tally, places, origins)
        write_unit(self._recipe.folder, unit, encoded, places, tally)
        return tally

    def _part(self, piece: Piece, index: int, tally: Tally) -> _Part:
        rows: Rows
        if piece.is_table:
            table = read_table(piece.load())
            rows = lines = np.arange(table.num_rows)
            found = self._checked_table(table, piece)
        else:
            records, rows, lines = self._records(piece, index, tally)
            if not records:
                return _Part(Tokens(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(1, np.int64)), rows, lines)
            found = self._checked_records(
                records, [_origin(piece, *at) for at in zip(rows.tolist(), lines.tolist(), strict=True)]
            )
        tally.read[index] += len(rows)
        ids = found.ids.values.astype(np.int32)
        weights = np.ones(len(ids), np.float32) if found.mask is None else found.mask.values.astype(np.float32)
        return _Part(without_first(Tokens(ids, weights, found.ids.offsets)), rows, lines)

    def _checked_table(self, table: pa.RecordBatch, piece: Piece) -> Checked:
        columns = choose(table.schema.names, self._recipe.columns, piece.name)
        wanted = table.select(columns.names())
        return check(wanted, columns, self._recipe.spec.id_limit, lambda row: _origin(piece, row, 0))

    def _checked_records(self, records: Sequence[Record], origins: Sequence[Origin]) -> Checked:
        """All rows as columns; where that fails, one by one, so that the row is named that is to blame."""
        try:
            return self._check_records(records, origins)
        except FormatError:
            for record, origin in zip(records, origins, strict=True):
                self._check_records([record], [origin])
            raise

    def _check_records(self, records: Sequence[Record], origins: Sequence[Origin]) -> Checked:
        columns = choose(records[0].keys(), self._recipe.columns, origins[0])
        batch = as_batch(records, columns, origins[0])
        return check(batch, columns, self._recipe.spec.id_limit, origins.__getitem__)

    def _records(
        self, piece: Piece, index: int, tally: Tally
    ) -> tuple[list[Record], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        records: list[Record] = []
        places: list[tuple[int, int]] = []
        for raw in parse(piece, piece.load()):
            if raw.record is None:
                tally.read[index] += 1
                tally.skip(index, raw.row, None if piece.line is None else raw.line, BAD_ROW, raw.fault)
            else:
                records.append(raw.record)
                places.append((raw.row, raw.line))
        if piece.fault:
            tally.read[index] += 1
            tally.skip(index, piece.rows, None, BAD_ROW, piece.fault)
        where = np.array(places, np.int64).reshape(-1, 2)
        return records, where[:, 0].copy(), where[:, 1].copy()


class _Origins(Sequence[Origin]):
    """The addresses of rows, made when they are asked for."""

    def __init__(self, pieces: Sequence[Piece], places: Sequence[tuple[int, int, int]]) -> None:
        self._pieces, self._places = pieces, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, row: int) -> Origin:  # type: ignore[override]  # Never asked for a slice.
        piece, within, line = self._places[row]
        return _origin(self._pieces[piece], within, line)

    def __iter__(self) -> Iterator[Origin]:
        return (self[row] for row in range(len(self)))


def _origin(piece: Piece, row: int, line: int) -> Origin:
    return Origin(piece.name, piece.row + row, None if piece.line is None else piece.line + line)


def _together(parts: Sequence[_Part]) -> Tokens:
    lengths = [np.diff(part.tokens.offsets) for part in parts]
    return Tokens(
        np.concatenate([part.tokens.input_ids for part in parts]),
        np.concatenate([part.tokens.loss_weights for part in parts]),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))]),
    )
