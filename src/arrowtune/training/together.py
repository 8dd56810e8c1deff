"""What all ranks do at once, and what rank 0 does for them: an error of one is the error of all, at the same place.

Whatever a rank does alone can fail on it alone; the others would then wait for it in their next collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from arrowtune.errors import ArrowtuneError, WorkerLost

T = TypeVar("T")


class Ranks(Protocol):
    """All ranks of a run, as one of them sees them: a backend has it."""

    rank: int

    def gather(self, value: Any) -> list[Any]:
        """The value of every rank, in rank order, on every rank."""
        ...


def together(ranks: Ranks, act: Callable[[], T]) -> list[T]:
    """Act on every rank; every rank calls it, and each collective inside `act` is reached by all or by none.

    Returns:
        What each rank returned, picklable where there are several.

    Raises:
        ArrowtuneError: What the first rank that failed has raised, on every rank. An exception nobody foresaw is raised as
            it is where it happened, and as `WorkerLost` on the others.
    """
    value: T | None = None
    trouble: Exception | None = None
    try:
        value = act()
    except Exception as error:  # noqa: BLE001 - whatever it is, the others must hear of it
        trouble = error
    outcomes = ranks.gather((value, None if trouble is None else _as_told(trouble, ranks.rank)))
    first = next((told for _, told in outcomes if told is not None), None)
    if first is None:
        return [value for value, _ in outcomes]
    if trouble is None:
        raise first
    if first is trouble or not isinstance(trouble, ArrowtuneError):
        raise trouble
    raise first from trouble


def leader(ranks: Ranks, act: Callable[[], T]) -> T:
    """Act on rank 0 alone and give every rank its value, or its error; every rank calls it. See `together`."""
    return cast(T, together(ranks, act if ranks.rank == 0 else _nothing)[0])


def _nothing() -> None:
    """What the other ranks do meanwhile."""


def _as_told(error: Exception, rank: int) -> ArrowtuneError:
    if isinstance(error, ArrowtuneError):
        return error
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return WorkerLost(f"rank {rank} failed: {reason}", hint="its traceback is in the log of that rank")
