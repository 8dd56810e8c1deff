"""Bringing rows together that lie apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from arrowtune.compiled import compiled, compiles

Ints = npt.NDArray[np.int64]


def copy_rows(
    values: npt.NDArray[Any], starts: Ints, lengths: npt.NDArray[np.int32], out: npt.NDArray[Any], places: Ints
) -> None:
    """Copy rows of a flat array to where they belong in another, from one type of number to the other.

    Args:
        values: Holds the rows.
        starts: int64[n], where each begins in it.
        lengths: int32[n], of each.
        out: Receives them.
        places: int64[n], where each begins there.
    """
    # numba is loaded where steps are packed; what only reads a store does not wait for it.
    (_copy if compiles() else _copy_one_by_one)(values, starts, lengths, out, places)


def _copy_one_by_one(
    values: npt.NDArray[Any], starts: Ints, lengths: npt.NDArray[np.int32], out: npt.NDArray[Any], places: Ints
) -> None:
    views = [values[start:stop] for start, stop in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]
    if views and int(lengths.sum(dtype=np.int64)) == len(out):  # All rows there are, in order.
        np.concatenate(views, out=out, casting="unsafe")
        return
    for view, place in zip(views, places.tolist(), strict=True):
        out[place : place + len(view)] = view


@compiled
def _copy(values: npt.NDArray[Any], starts: Ints, lengths: npt.NDArray[np.int32], out: npt.NDArray[Any], places: Ints) -> None:
    for row in range(len(starts)):
        start, place = starts[row], places[row]
        for k in range(lengths[row]):
            out[place + k] = values[start + k]
