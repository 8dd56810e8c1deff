"""Which source each draw comes from: shares that hold at every prefix and never drift.

The weights are exact fractions. The draws are cut into blocks; at the end of every block the count of each source is its
exact share, rounded by largest remainder, so the error is below one example however long the run. Within a block the
sources take turns as in Tijdeman's chairman assignment ("The chairman assignment problem", 1980): the m-th of c draws
from a source falls between floor((m - 1) B / c) + 1 and ceil(m B / c), earliest deadline first, which keeps every
prefix of the block within one example of the block's own shares. Where the weights have a common denominator that fits
a block (0.6, 0.3, 0.1: ten) both errors are the same one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from arrowtune.compiled import compiled
from arrowtune.errors import PlanError

Ints = npt.NDArray[np.int64]
Turns = npt.NDArray[np.int32]

_BLOCK = 1024
_LARGEST_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Mixture:
    """Weights as integers over their sum, and the length of a block. Build it with `mixture`.

    Attributes:
        shares: Of each source; the share is `shares[s] / sum(shares)`.
        block: Draws of a block; every source has at least one in each.
    """

    shares: tuple[int, ...]
    block: int

    def counts(self, draws: int) -> list[int]:
        """How many of the first `draws` draws come from each source."""
        number, rest = divmod(draws, self.block)
        counts = self._at_block(number)
        if rest:
            turns = np.bincount(self._turns(number)[:rest], minlength=len(self.shares))
            counts = [count + int(more) for count, more in zip(counts, turns, strict=True)]
        return counts

    def draws_until(self, source: int, count: int) -> int:
        """The fewest draws among which `count` come from a source; `count` is at least 1."""
        # A block gives each source its share but for less than one draw.
        number = max(0, (count - 1) * sum(self.shares) // (self.shares[source] * self.block) - 1)
        while self._at_block(number + 1)[source] < count:
            number += 1
        own = np.flatnonzero(self._turns(number) == source)
        return number * self.block + int(own[count - self._at_block(number)[source] - 1]) + 1

    def draw(self, start: int, count: int) -> tuple[Turns, Ints]:
        """The sources of draws `start` to `start + count`, and for each how often that source was drawn before.

        Returns:
            int32[count] and int64[count].
        """
        if not count:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        numbers = range(start // self.block, (start + count - 1) // self.block + 1)
        if self.block % sum(self.shares):
            turns = np.concatenate([self._turns(number) for number in numbers])
        else:  # All blocks are the same.
            turns = np.tile(self._turns(0), len(numbers))
        before = np.empty(len(turns), dtype=np.int64)
        for source, drawn in enumerate(self._at_block(numbers[0])):
            own = np.flatnonzero(turns == source)
            before[own] = drawn + np.arange(len(own))
        skip = start - numbers[0] * self.block
        return turns[skip : skip + count], before[skip : skip + count]

    def _at_block(self, number: int) -> list[int]:
        """Counts at the start of a block: exact shares, rounded by largest remainder, ties to the earlier source."""
        draws, whole = number * self.block, sum(self.shares)
        counts = [draws * share // whole for share in self.shares]
        remainders = [-(draws * share % whole) for share in self.shares]
        for source in sorted(range(len(counts)), key=lambda index: (remainders[index], index))[: draws - sum(counts)]:
            counts[source] += 1
        return counts

    def _turns(self, number: int) -> Turns:
        first, last = self._at_block(number), self._at_block(number + 1)
        return _turns(tuple(b - a for a, b in zip(first, last, strict=True)))


def mixture(weights: Sequence[float], names: Sequence[str]) -> Mixture:
    """Exact shares from weights as a person writes them: 0.1 is one tenth.

    Args:
        weights: Positive and finite; they need not sum to one.
        names: Of the sources, for errors.

    Raises:
        PlanError: A weight is not positive, or too small to give an example in a million draws.
    """
    for weight, name in zip(weights, names, strict=True):
        if not (math.isfinite(weight) and weight > 0):
            raise PlanError(
                f"the weight {weight} of source {name!r} is not a positive number", hint="leave the source out instead"
            )
    shares = _whole(weights)
    whole = sum(shares)
    rarest = min(range(len(shares)), key=shares.__getitem__)
    if whole > _LARGEST_BLOCK * shares[rarest]:
        raise PlanError(
            f"the weight {weights[rarest]} of source {names[rarest]!r} is less than one example in {_LARGEST_BLOCK:,} draws",
            hint="raise the weight or leave the source out",
        )
    if whole <= 4 * _BLOCK:
        return Mixture(tuple(shares), whole * max(1, _BLOCK // whole))
    # With at least one draw of every source in a block, rounding can never take back what an earlier block gave.
    return Mixture(tuple(shares), max(_BLOCK, -(-whole // shares[rarest])))


def shares_of(weights: Sequence[float]) -> list[float]:
    """Weights as shares of one; the same ones for 3, 1 and for 0.75, 0.25."""
    shares = _whole(weights)
    return [share / sum(shares) for share in shares]


def _whole(weights: Sequence[float]) -> list[int]:
    """Weights as the smallest whole numbers in the same proportion; at least one is above 0."""
    fractions = [Fraction(repr(float(weight))) for weight in weights]
    scale = math.lcm(*(fraction.denominator for fraction in fractions))
    shares = [int(fraction * scale) for fraction in fractions]
    divisor = math.gcd(*shares)
    return [share // divisor for share in shares]


@functools.lru_cache(maxsize=16)
def _turns(counts: tuple[int, ...]) -> Turns:
    return take_turns(np.array(counts, dtype=np.int64))


@compiled
def take_turns(counts: Ints) -> Turns:
    """The source of each draw of a block with these counts: earliest deadline first among the sources that are due."""
    block = counts.sum()
    given = np.zeros(len(counts), dtype=np.int64)
    turns = np.empty(block, dtype=np.int32)
    for slot in range(block):
        chosen, soonest = -1, block + 1
        for source in range(len(counts)):
            if given[source] < counts[source] and given[source] * block // counts[source] <= slot:
                deadline = -(-(given[source] + 1) * block // counts[source])
                if deadline < soonest:
                    chosen, soonest = source, deadline
        turns[slot] = chosen
        given[chosen] += 1
    return turns
