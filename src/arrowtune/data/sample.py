"""The first rows of a source, rendered and not kept: for a preview, and for an estimate before anything is prepared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from arrowtune.data.encode import UnitEncoder
from arrowtune.data.formats import detect_format
from arrowtune.data.identity import first_columns
from arrowtune.data.prepare import PrepareJob
from arrowtune.data.recipe import Recipe
from arrowtune.data.render import Renderer, RenderSpec
from arrowtune.data.sources import Piece, Source, head, resolve_source
from arrowtune.data.units import Scan, Unit
from arrowtune.protocols import Tokens
from arrowtune.types import Conversation, IntArray, Item, Skip


@dataclass(frozen=True, slots=True)
class Sample:
    """The first rows of a source.

    Attributes:
        items: Rows that are of their format.
        skips: The first of the rows that are not, or hold nothing to train on, by reason.
        skipped: How many such rows there are, by reason.
        rows_read: Both together.
        share: The part of what a run takes of the source, by bytes or by its `limit`, that was read; in (0, 1].
        renderer: Renders the items.
    """

    items: list[Item]
    skips: list[Skip]
    skipped: Counter[str]
    rows_read: int
    share: float
    renderer: Renderer


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a whole source will come to, scaled up from its first rows; or exactly, where they are all.

    Attributes:
        name: Of the source.
        identity: Stands in for the identity of a store.
        rows_read, skipped: Raw rows, and those not used by reason.
        exact: Whether every row was read.
        lengths, trained_tokens, loss_weight_sums: One entry for each expected example, drawn from the sample in turn.
        sample: The examples of the sample.
    """

    name: str
    identity: str
    rows_read: int
    skipped: dict[str, int]
    exact: bool
    lengths: npt.NDArray[np.int32]
    trained_tokens: npt.NDArray[np.int32]
    loss_weight_sums: npt.NDArray[np.float64]
    sample: Tokens

    def __len__(self) -> int:
        return len(self.lengths)

    def fetch(self, rows: IntArray) -> Tokens:
        """Examples of the sample, in turn."""
        offsets = self.sample.offsets
        spans = [slice(*offsets[row : row + 2].tolist()) for row in (rows % (len(offsets) - 1)).tolist()]
        parts = [np.concatenate([buffer[span] for span in spans]) for buffer in (self.sample.input_ids, self.sample.loss_weights)]
        return Tokens(parts[0], parts[1], np.cumsum([0, *(span.stop - span.start for span in spans)], dtype=np.int64))


def sample_source(job: PrepareJob, spec: RenderSpec, rows: int) -> Sample:
    """Read the first `rows` rows of a source.

    Raises:
        DataError: The source, its format or its template.
    """
    source = resolve_source(job.config, job.name)
    limit = min(rows, job.config.limit or rows)
    form: str = job.config.format
    if form == "auto":
        columns, number = first_columns(source)
        form = detect_format(columns, job.config.columns, f"source {job.name!r} in {source.files[number].state.path}")
    encoder = UnitEncoder(Recipe(spec, form, job.config.reading(), Path()))
    items: list[Item] = []
    skips: list[Skip] = []
    skipped: Counter[str] = Counter()
    read, size = 0, 0.0
    for piece, part in _first_pieces(source, limit):
        tally, gathered = encoder.gather(Unit(0, (piece,)))
        items += gathered.items
        skipped.update(tally.skipped)
        read += tally.rows_read
        size += part
        # The tally keeps the first addresses of each reason, which is what a preview shows.
        for skip in tally.skips([piece.name]):
            origin = skip.origin
            line = None if piece.line is None else piece.line + (origin.line or 0)
            skips.append(replace(skip, origin=replace(origin, row=piece.row + origin.row, line=line)))
    return Sample(
        items, skips, skipped, read, _share(job.config.limit, limit, read, size / max(1, source.size)), encoder.renderer
    )


def _share(wanted: int | None, asked: int, read: int, of_bytes: float) -> float:
    """The part that was read of the rows that a run takes, of which it wants at most so many."""
    if asked == wanted or read < asked:
        return 1.0
    return min(1.0, max(of_bytes, read / wanted if wanted else 0.0))


def _first_pieces(source: Source, limit: int) -> Iterator[tuple[Piece, float]]:
    """Pieces with `limit` rows together, and the bytes of the source that each stands for."""
    left = limit
    for unit in Scan(source, None):
        for piece in unit.pieces:
            if piece.rows <= left:
                yield piece, piece.size
            else:
                yield head(piece, left), piece.size * left / piece.rows
            left -= piece.rows
            if left <= 0:
                return


def estimate_source(job: PrepareJob, spec: RenderSpec, rows: int = 1000) -> Estimate:
    """What a source will come to, from its first rows.

    Raises:
        DataError: The source, its format or its template.
    """
    sample = sample_source(job, spec, rows)
    if any(isinstance(item, Conversation) for item in sample.items):
        sample.renderer.check_template()
    encoded = sample.renderer.encode(sample.items)
    skipped = sample.skipped + Counter(skip.reason for skip in encoded.skips)
    weights, starts = encoded.loss_weights, encoded.offsets[:-1]
    trained = np.add.reduceat(weights > 0, starts, dtype=np.int64) if len(starts) else np.zeros(0, np.int64)
    sums = np.add.reduceat(weights.astype(np.float64), starts) if len(starts) else np.zeros(0)
    scale = 1 / sample.share
    repeat = np.arange(round(len(starts) * scale)) % max(1, len(starts))
    return Estimate(
        name=job.name,
        identity=f"estimate of {job.name}",
        rows_read=round(sample.rows_read * scale),
        skipped={reason: round(count * scale) for reason, count in skipped.items()},
        exact=sample.share == 1.0,
        lengths=np.diff(encoded.offsets).astype(np.int32)[repeat],
        trained_tokens=trained.astype(np.int32)[repeat],
        loss_weight_sums=sums[repeat],
        sample=Tokens(encoded.input_ids, encoded.loss_weights, encoded.offsets),
    )
