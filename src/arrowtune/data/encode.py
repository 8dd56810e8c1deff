"""From a unit of work to a file of examples: what every worker does, and what one process does alone."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Thread

import numpy as np

from arrowtune.data.formats import get_format
from arrowtune.data.formats.base import refuse_media
from arrowtune.data.recipe import Recipe
from arrowtune.data.render import Encoded, Rendered, Renderer
from arrowtune.data.report import BAD_ROW, Tally
from arrowtune.data.sources import parse
from arrowtune.data.unit_file import read_tally, write_unit
from arrowtune.data.units import Unit
from arrowtune.errors import FormatError, RenderError
from arrowtune.types import Conversation, Item, Origin, Skip

_PART_BYTES = 512 << 10


@dataclass(slots=True)
class Gathered:
    """The rows of a unit that are of their format, with their addresses within it: piece, row, line."""

    items: list[Item] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Begun:
    """A unit that was read and rendered, or is about to be rendered as it is encoded.

    Attributes:
        tally: What reading it counted.
        gathered: Its rows.
        parts: Their renders, in order.
    """

    tally: Tally
    gathered: Gathered
    parts: Iterable[Rendered]


class UnitEncoder:
    """Encodes units by one recipe, and keeps the renderer between them."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._format = get_format(recipe.format)
        self._checked = False

    @cached_property
    def renderer(self) -> Renderer:
        """Made with the first unit that holds a row.

        Raises:
            RenderError: The template cannot be used.
        """
        return Renderer(self._recipe.spec)

    def run(self, unit: Unit) -> Tally:
        """Encode a unit into its file, unless an earlier run has.

        Raises:
            RenderError: The template cannot be used, or a row is too long and that is an error.
            StoreError: The disk refuses.
            SourceError: A file changed since it was cut.
        """
        found = self.found(unit)
        return found if found is not None else self.finish(unit, self._begin(unit))

    def found(self, unit: Unit) -> Tally | None:
        """What an earlier run counted of a unit that it finished."""
        return read_tally(self._recipe.folder, unit)

    def load(self) -> Thread | None:
        """Begin to load the token engine in a thread; `begin` may be called meanwhile, and `loaded` once the thread has ended.

        Returns:
            The thread, or None where nothing is to be loaded.
        """
        with contextlib.suppress(RenderError):  # Raised again for the first unit that holds a row.
            return self.renderer.engine.load()
        return None

    def loaded(self) -> None:
        """The thread of `load` has ended."""
        self.renderer.engine.loaded()

    def begin(self, unit: Unit) -> Begun:
        """Read and render a unit, as far as it goes without the token engine.

        Raises:
            RenderError: The template cannot be used.
            SourceError: A file changed since it was cut.
            StillLoading: The engine is needed, and it is loading.
        """
        begun = self._begin(unit)
        return Begun(begun.tally, begun.gathered, list(begun.parts))

    def finish(self, unit: Unit, begun: Begun) -> Tally:
        """Encode what was begun into the unit's file.

        Raises:
            RenderError: A row is too long and that is an error.
            StoreError: The disk refuses.
        """
        tally, gathered = begun.tally, begun.gathered
        encoded = _joined(begun.parts, self.renderer)
        self._account(encoded, tally, gathered.places, (item.origin for item in gathered.items))
        tally.engine = self.renderer.engine.reason if tally.tokens else ""
        write_unit(self._recipe.folder, unit, encoded, gathered.places, tally)
        return tally

    def _begin(self, unit: Unit) -> Begun:
        tally, gathered = self.gather(unit)
        self._check_template(gathered)
        return Begun(tally, gathered, self._render(gathered.items, sum(piece.stop - piece.start for piece in unit.pieces)))

    def gather(self, unit: Unit) -> tuple[Tally, Gathered]:
        """Read the rows of a unit and parse them; those that are not of the format are counted."""
        count = len(unit.pieces)
        tally = Tally(read=[0] * count, kept=[0] * count)
        gathered = Gathered()
        for index, piece in enumerate(unit.pieces):
            for raw in parse(piece, piece.load()):
                tally.read[index] += 1
                line = None if piece.line is None else raw.line
                if raw.record is None:
                    tally.skip(index, raw.row, line, BAD_ROW, raw.fault)
                    continue
                origin = Origin(piece.name, piece.row + raw.row, None if piece.line is None else piece.line + raw.line)
                try:
                    refuse_media(raw.record, origin)
                    item = self._format.parse(raw.record, origin, self._recipe.columns)
                except FormatError as error:
                    tally.skip(index, raw.row, line, BAD_ROW, error.message.removeprefix(f"{origin}: "))
                    continue
                if isinstance(item, Skip):
                    tally.skip(index, raw.row, line, item.reason, item.detail)
                else:
                    gathered.items.append(item)
                    gathered.places.append((index, raw.row, raw.line))
            if piece.fault:
                tally.read[index] += 1
                tally.skip(index, piece.rows, None, BAD_ROW, piece.fault)
        return tally, gathered

    def _check_template(self, gathered: Gathered) -> None:
        """Once, before the first conversation is rendered."""
        if not self._checked and any(isinstance(item, Conversation) for item in gathered.items):
            self.renderer.check_template()
            self._checked = True

    def _render(self, items: Sequence[Item], size: int) -> Iterator[Rendered]:
        """Render in parts of about the same size: what encoding needs beside the result is bounded by a part."""
        rows = max(1, len(items) * _PART_BYTES // max(1, size))
        for start in range(0, max(1, len(items)), rows):
            yield self.renderer.render(items[start : start + rows])

    @staticmethod
    def _account(encoded: Encoded, tally: Tally, places: Sequence[tuple[int, int, int]], origins: Iterable[Origin]) -> None:
        """Count what became of rows, of which `places` are the addresses within the unit and `origins` the full ones."""
        place_of = dict(zip(origins, places, strict=True)) if encoded.skips else {}
        for skip in encoded.skips:
            piece, row, line = place_of[skip.origin]
            tally.skip(piece, row, None if skip.origin.line is None else line, skip.reason, skip.detail)
        for row in encoded.kept.tolist():
            tally.kept[places[row][0]] += 1
        starts = encoded.offsets[:-1]
        weights = encoded.loss_weights
        tally.tokens = len(encoded.input_ids)
        tally.trained_tokens = int(np.count_nonzero(weights) - np.count_nonzero(weights[starts]))
        tally.fractional = bool(((weights != 0) & (weights != 1)).any())
        tally.counts.update(encoded.counts)
        tally.sort()


def _joined(parts: Iterable[Rendered], renderer: Renderer) -> Encoded:
    """The tokens of parts that follow each other."""
    ids, weights, lengths, kept = [], [], [np.zeros(0, np.int64)], []
    skips: list[Skip] = []
    counts: Counter[str] = Counter()
    rows = 0
    for part in parts:
        encoded = renderer.tokenise(part)
        ids.append(encoded.input_ids)
        weights.append(encoded.loss_weights)
        lengths.append(np.diff(encoded.offsets))
        kept.append(encoded.kept + rows)
        skips += encoded.skips
        counts.update(encoded.counts)
        rows += len(part)
    return Encoded(
        input_ids=np.concatenate(ids),
        loss_weights=np.concatenate(weights),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))]),
        kept=np.concatenate(kept),
        skips=skips,
        counts=dict(counts),
    )
