"""The order of the data: which example each draw of a run is.

A pure function of the seed, the sizes of the sources and their shares. Any draw can be computed at once, at no more
cost than the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arrowtune.errors import PlanError
from arrowtune.plan.permutation import permute, stream_key
from arrowtune.plan.shares import Shares
from arrowtune.types import Ref

ORDER_VERSION = 1
"""Raised whenever the same seed gives another order, so that no checkpoint continues on a different one."""


@dataclass(frozen=True, slots=True)
class Refs:
    """Addresses of examples, in order.

    Attributes:
        stores: int32[n], which store.
        rows: int64[n], which row of it.
    """

    stores: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Ref]:
        return map(Ref, self.stores.tolist(), self.rows.tolist())

    def __getitem__(self, index: npt.NDArray[np.int64]) -> Refs:
        return Refs(self.stores[index], self.rows[index])


class Order:
    """The draws of a run over some sources.

    Without shares an epoch is one permutation of all rows of all sources. With shares every draw's source follows from
    them (see `shares`), and each source is read in a fresh permutation per pass.

    Args:
        sizes: Rows of each source.
        shares: Which source each draw comes from, or None for every row once per epoch.
        seed: Of the permutations; None takes rows as they stand.
        names: Of the sources, for errors.
        end: The number of draws after which there are no more; None where there is no end. Shares have their own.

    Raises:
        PlanError: There are no rows, or a source with a weight has none.
    """

    def __init__(
        self, sizes: Sequence[int], shares: Shares | None, seed: int | None, names: Sequence[str], end: int | None = None
    ) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        self.epoch_examples = sum(self.sizes)
        if not self.epoch_examples:
            raise PlanError("there is not a single example to train on", hint="see the skipped rows of `arrowtune prepare`")
        self.shares = shares
        self.end = end if shares is None else shares.end
        for source in {source for segment in shares.segments for source in segment.sources} if shares else ():
            if not self.sizes[source]:
                raise PlanError(
                    f"source {names[source]!r} has a weight but no example",
                    hint="leave it out, or see why its rows were skipped",
                )
        self._shuffled = seed is not None
        self._keys = [stream_key("source", seed or 0, source) for source in range(len(self.sizes))]
        self._epoch_key = stream_key("epoch", seed or 0)
        self._ends = np.cumsum(self.sizes)

    def refs(self, start: int, count: int) -> Refs:
        """The examples of draws `start` to `start + count`."""
        if self.shares is None:
            return self._uniform(np.arange(start, start + count, dtype=np.int64))
        return self._weighted(*self.shares.draw(start, count))

    def pass_rows(self, source: int, number: int, count: int) -> npt.NDArray[np.int64]:
        """The first `count` rows of one pass over a source; only where there are shares."""
        positions = np.arange(count, dtype=np.int64)
        return self._permuted(positions, np.full(count, number, dtype=np.int64), self.sizes[source], self._keys[source])

    def _uniform(self, draws: npt.NDArray[np.int64]) -> Refs:
        epochs, positions = np.divmod(draws, self.epoch_examples)
        rows = self._permuted(positions, epochs, self.epoch_examples, self._epoch_key)
        stores = np.searchsorted(self._ends, rows, side="right")
        starts = self._ends - np.array(self.sizes)
        return Refs(stores.astype(np.int32), rows - starts[stores])

    def _weighted(self, sources: npt.NDArray[np.int32], drawn: npt.NDArray[np.int64]) -> Refs:
        rows = np.empty(len(sources), dtype=np.int64)
        for source, (size, key) in enumerate(zip(self.sizes, self._keys, strict=True)):
            own = np.flatnonzero(sources == source)
            if len(own):
                passes, positions = np.divmod(drawn[own], size)
                rows[own] = self._permuted(positions, passes, size, key)
        return Refs(sources, rows)

    def _permuted(
        self, positions: npt.NDArray[np.int64], passes: npt.NDArray[np.int64], size: int, key: int
    ) -> npt.NDArray[np.int64]:
        return permute(positions, passes, size, key) if self._shuffled else positions
