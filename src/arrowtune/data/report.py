"""What became of the rows of a unit, and of a source: counts by reason, with the addresses of the first few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from arrowtune.types import Origin, Skip

SHOWN = 10
"""How many addresses are kept for each reason."""

BAD_ROW = "bad_row"

DETAIL = 500
"""How many characters are kept of what is said of a row."""


@dataclass(frozen=True, slots=True)
class Place:
    """A skipped row: the file's index within the unit or source, its row and line there, and the detail."""

    file: int
    row: int
    line: int | None
    detail: str


@dataclass(slots=True)
class Tally:
    """Counts of rows, with the first addresses of those that were not used.

    Attributes:
        read: Rows read, by file.
        kept: Rows that became examples, by file.
        tokens, trained_tokens: Of the examples.
        fractional: Whether any loss weight is neither 0 nor 1.
        skipped: Rows not used, by reason.
        places: The first of them, by reason.
        counts: Rows that met something worth telling, by what.
        engine: Why the fast token engine was not used though it was wished for; empty where it was.
    """

    read: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    tokens: int = 0
    trained_tokens: int = 0
    fractional: bool = False
    skipped: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[Place]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    engine: str = ""

    @property
    def rows_read(self) -> int:
        return sum(self.read)

    @property
    def rows(self) -> int:
        return sum(self.kept)

    def skip(self, file: int, row: int, line: int | None, reason: str, detail: str) -> None:
        """Count a row that is not used."""
        self.skipped[reason] += 1
        places = self.places.setdefault(reason, [])
        if len(places) < SHOWN:
            places.append(Place(file, row, line, detail if len(detail) <= DETAIL else f"{detail[:DETAIL]} ..."))

    def skip_bad(self, file: int, row: int, line: int | None, detail: str) -> None:
        """Count a malformed row that was read outside of a unit."""
        self.read[file] += 1
        self.skip(file, row, line, BAD_ROW, detail)

    def skips(self, names: list[str]) -> list[Skip]:
        """The first skipped rows of each reason with full addresses, given the names of the files."""
        return [
            Skip(Origin(names[place.file], place.row, place.line), reason, place.detail)
            for reason, found in sorted(self.places.items())
            for place in found
        ]

    def sort(self) -> None:
        """Bring the addresses into source order."""
        for places in self.places.values():
            places.sort(key=lambda place: (place.file, place.row))

    def add(self, unit: Tally, files: Iterable[tuple[int, int, int | None]]) -> None:
        """Add a unit's tally.

        Args:
            unit: The tally, whose files are the unit's pieces.
            files: For each piece its file's index, first row and first line.
        """
        bases = list(files)
        for (file, _, _), read, kept in zip(bases, unit.read, unit.kept, strict=True):
            missing = file + 1 - len(self.read)
            self.read.extend([0] * missing)
            self.kept.extend([0] * missing)
            self.read[file] += read
            self.kept[file] += kept
        self.tokens += unit.tokens
        self.trained_tokens += unit.trained_tokens
        self.fractional = self.fractional or unit.fractional
        self.skipped.update(unit.skipped)
        self.counts.update(unit.counts)
        self.engine = self.engine or unit.engine
        for reason, places in unit.places.items():
            own = self.places.setdefault(reason, [])
            for place in places[: SHOWN - len(own)]:
                file, row, line = bases[place.file]
                own.append(Place(file, row + place.row, None if line is None else line + (place.line or 0), place.detail))

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        # Counters as plain dicts: asdict would count their items.
        places = {reason: [asdict(place) for place in found] for reason, found in self.places.items()}
        tree = {name: getattr(self, name) for name in ("read", "kept", "tokens", "trained_tokens", "fractional", "engine")}
        return {**tree, "skipped": dict(self.skipped), "counts": dict(self.counts), "places": places}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Tally:
        """The tally that `to_json` gave."""
        places = {reason: [Place(**place) for place in found] for reason, found in tree["places"].items()}
        counters = {name: Counter(tree[name]) for name in ("skipped", "counts")}
        return cls(**{**tree, **counters, "places": places})
