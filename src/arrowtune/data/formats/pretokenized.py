"""Rows of token ids with a mask: nothing is rendered, everything is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from arrowtune.data.formats.base import Parsed, bad
from arrowtune.data.pretokenized.check import check
from arrowtune.data.pretokenized.columns import Columns, choose
from arrowtune.types import Origin, Record, Tokenized

_ANY = 1 << 31


class PretokenizedFormat:
    """Rows with `input_ids` and a `loss_mask`, `loss_weights` or, where the source says so, `labels`."""

    name = "pretokenized"
    columns = ("input_ids", "loss_mask", "loss_weights", "labels", "attention_mask")

    def matches(self, columns: frozenset[str]) -> bool:
        """Rows with `input_ids`."""
        return "input_ids" in columns

    def parse(self, record: Record, origin: Origin, columns: Mapping[str, str | None]) -> Parsed:
        """Read a row; see `base.Format.parse`. Whether ids are in the vocabulary is for those to say who know it."""
        chosen = choose(record.keys(), columns, origin)
        checked = check(as_batch([record], chosen, origin), chosen, _ANY, lambda _: origin)
        ids = checked.ids.values.astype(np.int32)
        mask = np.ones(len(ids), np.float32) if checked.mask is None else checked.mask.values.astype(np.float32)
        return Tokenized(ids, mask, origin)


def as_batch(records: Sequence[Record], columns: Columns, place: object) -> pa.RecordBatch:
    """Rows that were read as Python values, as columns.

    Raises:
        FormatError: A column holds values that are of no one type.
    """
    arrays = []
    for name in columns.names():
        values: list[Any] = [record.get(name) for record in records]
        try:
            arrays.append(pa.array(values, from_pandas=False))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            origin = place if isinstance(place, Origin) else Origin(str(place), 0)
            raise bad(origin, name, "must be a list of numbers") from None
    return pa.RecordBatch.from_arrays(arrays, names=columns.names())
