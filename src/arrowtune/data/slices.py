"""`split`: which split of a data set, and which of its rows, as `train[10%:20%]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"^(?P<name>[\w.-]*)(?:\[(?P<start>\d+%?)?:(?P<stop>\d+%?)?\])?$")


@dataclass(frozen=True, slots=True)
class Split:
    """A split and the rows of it.

    Attributes:
        name: Of the split; "" where none is named.
        start, stop: Bounds of the rows, such as `1000` or `20%`; "" where there is none.
    """

    name: str
    start: str
    stop: str

    @classmethod
    def parse(cls, text: str) -> Split:
        """Read `NAME`, `NAME[START:STOP]` or `[START:STOP]`.

        Raises:
            ValueError: It is none of them, or its bounds contradict each other.
        """
        found = _FORM.match(text)
        if not found or not text:
            raise ValueError(f"{text!r} is no split; write train, train[:1000] or train[10%:20%]")
        split = cls(found["name"], found["start"] or "", found["stop"] or "")
        for bound in (split.start, split.stop):
            if bound.endswith("%") and int(bound[:-1]) > 100:
                raise ValueError(f"{bound} is more than all")
        if split.start and split.stop:
            if split.start.endswith("%") != split.stop.endswith("%"):
                raise ValueError(f"{text!r} has a bound in rows and one in percent; use one of them")
            first, last = (int(bound.removesuffix("%")) for bound in (split.start, split.stop))
            if first >= last:
                raise ValueError(f"{text!r} holds no row")
        return split

    @property
    def whole(self) -> bool:
        """Whether it is all rows."""
        return not (self.start or self.stop)

    def bounds(self, total: int) -> tuple[int, int]:
        """First row and the one after the last, of `total`; percentages are rounded as `datasets` rounds them."""

        def place(bound: str, otherwise: int) -> int:
            if not bound:
                return otherwise
            return round(total * int(bound[:-1]) / 100) if bound.endswith("%") else min(int(bound), total)

        return place(self.start, 0), place(self.stop, total)
