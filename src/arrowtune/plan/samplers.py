"""Other orders than the random one: by length, or one's own.

A sampler is a pure function `refs(start, count)`: the examples of some draws, the same whenever it is asked. So a run
resumes anywhere by asking from there.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from arrowtune.errors import PlanError
from arrowtune.plan.order import Order, Refs
from arrowtune.plan.permutation import permute, stream_key
from arrowtune.protocols import Examples

_WINDOW = 64
"""Batches of a window in which examples of like length come together."""


class Sampler(Protocol):
    """Which example each draw of a run is.

    Attributes:
        epoch_examples: Draws of an epoch.
    """

    epoch_examples: int

    def refs(self, start: int, count: int) -> Refs:
        """The examples of draws `start` to `start + count`."""
        ...


class LengthGrouped:
    """Batches of examples of like length, in random order.

    The draws of some batches are sorted by length and cut again, so an epoch has the same examples and every source its
    share; only which of them meet in a batch changes.

    Args:
        order: The draws.
        stores: The sources.
        batch: Examples of a step.
        seed: Of the order of the batches.
    """

    def __init__(self, order: Order, stores: Sequence[Examples], batch: int, seed: int) -> None:
        self._order, self._stores, self._batch = order, stores, batch
        self.epoch_examples = order.epoch_examples
        self._key = stream_key("length_grouped", seed)
        self._window = lru_cache(maxsize=2)(self._make_window)

    def refs(self, start: int, count: int) -> Refs:
        """See `Sampler.refs`."""
        parts = []
        while count:
            epoch, first = divmod(start, self._order.epoch_examples)
            number, skip = divmod(first, _WINDOW * self._batch)
            window = self._window(epoch, number)
            taken = min(count, len(window) - skip)
            parts.append(window[np.arange(skip, skip + taken)])
            start, count = start + taken, count - taken
        return Refs(
            np.concatenate([np.zeros(0, np.int32), *(part.stores for part in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(part.rows for part in parts)]),
        )

    def _make_window(self, epoch: int, number: int) -> Refs:
        size = self._order.epoch_examples
        first = number * _WINDOW * self._batch
        count = min(_WINDOW * self._batch, size - first)
        refs = self._order.refs(epoch * size + first, count)
        lengths = np.empty(count, np.int64)
        for index, store in enumerate(self._stores):
            own = np.flatnonzero(refs.stores == index)
            lengths[own] = store.lengths[refs.rows[own]]
        longest_first = np.argsort(-lengths, kind="stable")
        whole = count // self._batch  # What is left is the last batch of the epoch, which is smaller, and stays the last.
        turns = permute(np.arange(whole), np.full(whole, number + (epoch << 32)), max(1, whole), self._key)
        batches = longest_first[: whole * self._batch].reshape(whole, self._batch)[turns]
        return refs[np.concatenate([batches.ravel(), longest_first[whole * self._batch :]])]


class Own:
    """A sampler of the user's: what it gives is checked.

    Args:
        found: Has `refs(start, count)`, which returns `Refs`, a pair of arrays, or `(store, row)` pairs.
        name: As the run file names it, for errors.
        sizes: Rows of each source.
        epoch_examples: Draws of an epoch.
    """

    def __init__(self, found: Any, name: str, sizes: Sequence[int], epoch_examples: int) -> None:
        self._found, self._name, self._sizes = found, name, np.array(sizes, np.int64)
        self.epoch_examples = epoch_examples

    def refs(self, start: int, count: int) -> Refs:
        """See `Sampler.refs`.

        Raises:
            PlanError: It gives another number of examples, or one that is not there.
        """
        refs = _as_refs(self._found.refs(start, count))
        if len(refs) != count:
            raise PlanError(f"data.sampler {self._name} gave {len(refs)} examples for draws {start} to {start + count}")
        in_range = (refs.stores >= 0) & (refs.stores < len(self._sizes))
        in_range[in_range] &= (refs.rows[in_range] >= 0) & (refs.rows[in_range] < self._sizes[refs.stores[in_range]])
        if not in_range.all():
            place = int(np.argmin(in_range))
            raise PlanError(
                f"data.sampler {self._name} gave row {refs.rows[place]} of source {refs.stores[place]} for draw {start + place}: "
                f"the sources have {', '.join(map(str, self._sizes.tolist()))} rows"
            )
        return refs


class Stateful:
    """A torch-style sampler, which can only be iterated over, as a pure one.

    It yields indices into all sources end to end, once per epoch. Draws further on are reached by iterating up to them,
    earlier ones by beginning again.

    Args:
        sampler: Has `__iter__`, and `set_epoch` where epochs differ.
        sizes: Rows of each source.
    """

    def __init__(self, sampler: Any, sizes: Sequence[int]) -> None:
        self._sampler = sampler
        self._ends = np.cumsum(np.array(sizes, np.int64))
        self._begin()

    def refs(self, start: int, count: int) -> Refs:
        """See `Sampler.refs`."""
        if start < self._at:
            self._begin()
        while self._at < start:
            next(self._indices)
            self._at += 1
        indices = np.fromiter((next(self._indices) for _ in range(count)), np.int64, count)
        self._at += count
        stores = np.searchsorted(self._ends, indices, side="right").astype(np.int32)
        return Refs(stores, indices - np.concatenate([np.zeros(1, np.int64), self._ends])[stores])

    def _begin(self) -> None:
        self._at = 0
        self._indices = self._endless()

    def _endless(self) -> Iterator[int]:
        epoch = 0
        while True:
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(epoch)
            given = 0
            for index in self._sampler:
                given += 1
                yield int(index)
            if not given:
                raise PlanError("the sampler gives nothing in an epoch")
            epoch += 1


def load_sampler(name: str, options: Mapping[str, Any], stores: Sequence[Examples], seed: int) -> Own:
    """A sampler of the user's.

    Args:
        name: `module:Class`, or `path/to/file.py:Class`. Where it has a length, that is an epoch; else all examples are.
        options: Further arguments of the class.
        stores: The sources, its first argument.
        seed: Handed on as `seed`.

    Raises:
        PlanError: It cannot be loaded, or has neither `refs` nor `__iter__`.
    """
    sizes = [len(store) for store in stores]
    try:
        found = _class(name)(stores, seed=seed, **options)
    except (ImportError, AttributeError, OSError, SyntaxError, TypeError) as error:
        raise PlanError(
            f"data.sampler {name} cannot be loaded: {type(error).__name__}: {error}",
            hint="it is module:Class or path/to/file.py:Class, and the class takes (sources, seed=..., **data.sampler_options)",
        ) from error
    epoch = len(found) if hasattr(found, "__len__") else sum(sizes)
    if not epoch:
        raise PlanError(f"data.sampler {name} has a length of 0")
    if hasattr(found, "refs"):
        return Own(found, name, sizes, epoch)
    if hasattr(found, "__iter__"):
        return Own(Stateful(found, sizes), name, sizes, epoch)
    raise PlanError(f"data.sampler {name} has no method refs(start, count)", hint="see docs/data.md for one of 20 lines")


def _class(name: str) -> Any:
    module, _, attribute = name.rpartition(":")
    if not module.endswith(".py"):
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        return getattr(importlib.import_module(module), attribute)
    path = Path(module).expanduser().absolute()
    spec = importlib.util.spec_from_file_location(f"arrowtune_sampler_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, attribute)


def _as_refs(found: Any) -> Refs:
    if isinstance(found, Refs):
        return found
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], np.ndarray):
        return Refs(np.asarray(found[0], np.int32), np.asarray(found[1], np.int64))
    pairs: npt.NDArray[np.int64] = np.array(list(found), np.int64).reshape(-1, 2)
    return Refs(pairs[:, 0].astype(np.int32), pairs[:, 1].copy())
