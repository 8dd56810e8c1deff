"""A part of some examples, or the whole several times: a view, for which nothing is prepared anew."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from arrowtune.plan.permutation import permute, stream_key
from arrowtune.protocols import Examples, Tokens
from arrowtune.types import Example, IntArray

Rows = npt.NDArray[np.int64]
Array = TypeVar("Array", npt.NDArray[np.int32], npt.NDArray[np.float64])


def select(examples: Examples, sample: int | float | None, repeat: int, within: Rows | None = None) -> Examples:
    """The examples that a source gives to a run.

    Args:
        examples: All of them.
        sample: Only so many, or this share of them: the same ones whenever the content is the same, whatever the seed.
        repeat: How often each is there.
        within: int64[k], the only ones that may be taken, ascending; all where absent.

    Returns:
        `examples` themselves where nothing is asked for.
    """
    rows = within
    if sample is not None:
        drawn = _drawn(len(examples) if within is None else len(within), sample, examples.identity)
        rows = drawn if within is None else within[drawn]
    if rows is None and repeat == 1:
        return examples
    bounds = "" if within is None or not len(within) else f" within={within[0]}:{within[-1]}"
    return Selected(examples, rows, repeat, f"{examples.identity} sample={sample} repeat={repeat}{bounds}")


class Selected:
    """Implements `protocols.Examples`.

    Args:
        examples: Where they come from.
        rows: int64[k], which of them, ascending; None where all are.
        repeat: How often each is there.
        identity: Names the content.
    """

    def __init__(self, examples: Examples, rows: Rows | None, repeat: int, identity: str) -> None:
        self._examples, self._rows = examples, rows
        self._count = len(examples) if rows is None else len(rows)
        self._repeat = repeat
        self.name, self.identity = examples.name, identity
        self.lengths = self._seen(examples.lengths)
        self.trained_tokens = self._seen(examples.trained_tokens)
        self.loss_weight_sums = self._seen(examples.loss_weight_sums)

    def __len__(self) -> int:
        return self._count * self._repeat

    def __getitem__(self, row: int) -> Example:
        """One example, where the examples behind can give one."""
        found: Example = self._examples[int(self._behind(np.array([row]))[0])]  # type: ignore[index]
        return found

    def fetch(self, rows: IntArray) -> Tokens:
        """See `protocols.Examples.fetch`."""
        return self._examples.fetch(self._behind(rows))

    def _behind(self, rows: IntArray) -> Rows:
        within = np.asarray(rows, np.int64) % self._count
        return within if self._rows is None else self._rows[within]

    def _seen(self, values: Array) -> Array:
        once = values if self._rows is None else values[self._rows]
        return np.tile(once, self._repeat) if self._repeat > 1 else once


def _drawn(size: int, sample: int | float, identity: str) -> Rows:
    count = min(size, sample) if isinstance(sample, int) else min(size, max(1, round(size * sample)))
    places = np.arange(count, dtype=np.int64)
    return np.sort(permute(places, np.zeros(count, np.int64), size, stream_key("sample", identity))) if size else places
