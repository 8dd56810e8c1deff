"""A keyed pseudo-random permutation of [0, n): any position at once, in no memory.

A Feistel network over the smallest power of two that holds n (Luby and Rackoff, 1988) permutes that domain; values that
fall outside [0, n) are sent through again until they land inside (cycle walking: Black and Rogaway, "Ciphers with
arbitrary finite domains", 2002). The domain is less than 2n, so two walks are the mean at worst. The round function is the
finaliser of SplitMix64 (Steele, Lea and Flood, 2014). Mitchell et al. ("Bandwidth-optimal random shuffling for GPUs",
2022) show that such shuffles pass statistical tests.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from arrowtune.compiled import can_compile, compiled, compiles

UInts = npt.NDArray[np.uint64]

_MANY = 1 << 10
"""Positions from which on it pays to load the compiler."""

_ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15
_ROUND_KEYS = tuple(np.uint64(number * _GOLDEN % 2**64) for number in range(_ROUNDS))
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def stream_key(*parts: int | str) -> int:
    """A 64-bit key from named parts, such as the seed and the source."""
    text = "\x00".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def permute(positions: npt.NDArray[np.int64], passes: npt.NDArray[np.int64], n: int, key: int) -> npt.NDArray[np.int64]:
    """Where each position goes in the permutation of its pass.

    Args:
        positions: int64[k] in [0, n).
        passes: int64[k]; every pass is a permutation of its own.
        n: Size of the domain, at least 1.
        key: Chooses the family of permutations.

    Returns:
        int64[k] in [0, n).
    """
    if (len(positions) >= _MANY or compiles()) and can_compile():
        return _permute_many(positions, passes, n, np.uint64(key), np.array(_ROUND_KEYS))
    bits = max(1, (n - 1).bit_length())
    keys = _mix(np.uint64(key) ^ _mix(passes.astype(np.uint64) + np.uint64(_GOLDEN)))
    values = _feistel(positions.astype(np.uint64), keys, bits)
    outside = np.flatnonzero(values >= np.uint64(n))
    while len(outside):
        walked = _feistel(values[outside], keys[outside], bits)
        values[outside] = walked
        outside = outside[walked >= np.uint64(n)]
    return values.astype(np.int64)


@compiled
def _permute_many(
    positions: npt.NDArray[np.int64], passes: npt.NDArray[np.int64], n: int, key: np.uint64, round_keys: UInts
) -> npt.NDArray[np.int64]:
    """The same in one loop: a third of the time where there are many, and other threads may run meanwhile."""

    def mix(value: np.uint64) -> np.uint64:
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))

    bits = 1
    while bits < 63 and (n - 1) >> bits:
        bits += 1
    low_bits, high_bits = np.uint64((bits + 1) // 2), np.uint64(bits // 2)
    one, end = np.uint64(1), np.uint64(n)
    low_mask, high_mask = (one << low_bits) - one, (one << high_bits) - one
    placed = np.empty(len(positions), np.int64)
    mixed, last = key, np.int64(-1)
    for place in range(len(positions)):
        if passes[place] != last:
            last = passes[place]
            mixed = mix(key ^ mix(np.uint64(last) + np.uint64(0x9E3779B97F4A7C15)))
        value = np.uint64(positions[place])
        while True:
            low, high = value & low_mask, value >> low_bits
            for number in range(len(round_keys)):
                if number % 2:
                    low = low ^ (mix(high ^ (mixed + round_keys[number])) & low_mask)
                else:
                    high = high ^ (mix(low ^ (mixed + round_keys[number])) & high_mask)
            value = (high << low_bits) | low
            if value < end:
                break
        placed[place] = np.int64(value)
    return placed


def _feistel(values: UInts, keys: UInts, bits: int) -> UInts:
    """One pass through the network over `bits` bits; the halves differ by a bit where `bits` is odd."""
    low_bits = np.uint64((bits + 1) // 2)
    low_mask = np.uint64((1 << int(low_bits)) - 1)
    high_mask = np.uint64((1 << (bits // 2)) - 1)
    low, high = values & low_mask, values >> low_bits
    for number, round_key in enumerate(_ROUND_KEYS):
        if number % 2:
            low = low ^ (_mix(high ^ (keys + round_key)) & low_mask)
        else:
            high = high ^ (_mix(low ^ (keys + round_key)) & high_mask)
    return (high << low_bits) | low


def _mix(values: UInts) -> UInts:
    """The finaliser of SplitMix64: a bijection of 64 bits in which every input bit moves every output bit."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    mixed: UInts = values ^ (values >> np.uint64(31))
    return mixed
