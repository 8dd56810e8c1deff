"""One rank works while the others wait, for as long as it takes.

Under an outer torchrun the ranks exist before the data is prepared. A collective would time out after minutes; here the
others watch a heartbeat in the store that the ranks share anyway, and give up only when it stops.
"""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from arrowtune.errors import ArrowtuneError, WorkerLost

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

_round = itertools.count()
_kept: list[Any] = []
"""Stores live as long as the process: the first may host the server that the process group joins later."""


def lead_and_follow(work: Callable[[], T], *, beat_seconds: float = 1.0, patience_seconds: float = 120.0) -> T:
    """Do `work` on rank 0 and hand its value to every rank.

    Args:
        work: Called on rank 0 only; its value must be picklable. (The store is as trusted as torch's own object collectives.)
        beat_seconds: How often rank 0 shows that it lives, and the others look.
        patience_seconds: How long the heartbeat may stand still.

    Raises:
        ArrowtuneError: What `work` raised, on every rank.
        WorkerLost: Rank 0 is gone.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return work()
    store = _store(f"arrowtune/{next(_round)}")
    if os.environ["RANK"] == "0":
        return _lead(store, work, beat_seconds)
    value: T = _follow(store, beat_seconds, patience_seconds)
    return value


def _store(prefix: str) -> Store:
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", timeout=timedelta(minutes=30)))
    _kept.append(store)
    return PrefixStore(prefix, store)


def _lead(store: Store, work: Callable[[], T], beat_seconds: float) -> T:
    done = threading.Event()
    threading.Thread(target=_beat, args=(store, done, beat_seconds), daemon=True).start()
    try:
        value = work()
        _publish(store, (True, value))
        return value
    except BaseException as error:
        known = isinstance(error, ArrowtuneError)
        told = error if known else WorkerLost(f"rank 0 failed while the others waited: {type(error).__name__}: {error}")
        _publish(store, (False, told))
        _until_heard(store, int(os.environ["WORLD_SIZE"]) - 1)
        raise
    finally:
        done.set()


def _publish(store: Store, outcome: tuple[bool, Any]) -> None:
    # The store holds bytes; torch's annotation says str.
    store.set("outcome", pickle.dumps(outcome))  # type: ignore[arg-type]


def _beat(store: Store, done: threading.Event, seconds: float) -> None:
    with suppress(RuntimeError):  # Without a store the others give up by themselves.
        while not done.wait(seconds):
            store.add("beat", 1)


def _until_heard(store: Store, others: int, seconds: float = 5.0) -> None:
    """Stay a moment: the store may end with this process, and the others should learn the reason first."""
    deadline = time.monotonic() + seconds
    with suppress(RuntimeError):
        while store.add("heard", 0) < others and time.monotonic() < deadline:
            time.sleep(0.05)


def _follow(store: Store, beat_seconds: float, patience_seconds: float) -> Any:
    beat, since = -1, time.monotonic()
    try:
        while not store.check(["outcome"]):
            now = store.add("beat", 0)
            if now != beat:
                beat, since = now, time.monotonic()
            elif time.monotonic() - since > patience_seconds:
                raise WorkerLost(f"rank 0 has not answered for {patience_seconds:g} seconds while it prepared the run")
            time.sleep(min(beat_seconds, 0.5))
        good, value = pickle.loads(store.get("outcome"))
        store.add("heard", 1)
    except (RuntimeError, ConnectionError) as error:
        raise WorkerLost(f"the connection to rank 0 broke while it prepared the run: {error}") from None
    if not good:
        raise value
    return value
