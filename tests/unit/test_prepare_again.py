"""Preparing again: by force, beside readers, after others, and where somebody removed what was begun."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arrowtune.data.config import SourceConfig
from arrowtune.data.encode import UnitEncoder
from arrowtune.data.lease import Lease
from arrowtune.data.progress import Silent
from arrowtune.data.recipe import Recipe
from arrowtune.data.sources import resolve_source
from arrowtune.data.store import Store
from arrowtune.data.store_format import FolderGone
from arrowtune.data.units import Scan
from support.prepare import Notes, chats, content, prepare, spec, write_lines

SHORT = 24


class At(Notes):
    """Does something when a source is begun, and when its first unit is done."""

    def __init__(self, *, begin: Callable[[], Any] = lambda: None, done: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self._begin, self._done = begin, done

    def begin(self, source: str, size: int) -> None:
        self._begin()

    def advance(self, *_: Any) -> None:
        self._done()


class Stop(Exception):
    """Ends a prepare."""


def stop() -> None:
    raise Stop


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "rows.jsonl", chats(20))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def damage(store: Path) -> None:
    """Turn a bit in the middle of the data; its size stays."""
    file = store / "data-00000.arrow"
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)


def test_force_leaves_a_store_alone_that_is_the_same(data: Path, cache: Path) -> None:
    first = prepare(data, cache)
    inodes = {path.name: path.stat().st_ino for path in first.store_path.iterdir()}
    again = prepare(data, cache, force_recache=True)
    assert (again.reused, again.path) == (False, first.path)
    assert {path.name: path.stat().st_ino for path in first.store_path.iterdir()} == inodes
    assert [path.name for path in (cache / "stores").iterdir()] == [first.identity]


def test_force_makes_another_generation_beside_a_store_that_differs(data: Path, cache: Path) -> None:
    first = prepare(data, cache)
    whole = content(first.store_path)
    damage(first.store_path)
    damaged, reader = content(first.store_path), Store(first.path)
    again = prepare(data, cache, force_recache=True)
    assert (again.identity, again.path) == (first.identity, f"{first.path}.2")
    assert content(again.store_path) == whole
    # The reader opens its data file only now, and finds the one that its manifest and lengths belong to.
    assert len(reader[19].input_ids) == reader.lengths[19]
    assert content(first.store_path) == damaged
    found = prepare(data, cache)
    assert (found.reused, found.path) == (True, again.path)
    damage(again.store_path)
    assert prepare(data, cache, force_recache=True).path == f"{first.path}.3"


def begun(data: Path, cache: Path, **options: Any) -> Path:
    """The workspace of a prepare that ended before its first unit; it holds a unit of shorter examples instead."""
    before = set(cache.glob("units/*"))
    with pytest.raises(Stop):
        prepare(data, cache, progress=At(begin=stop), **options)
    [folder] = set(cache.glob("units/*")) - before
    [unit] = Scan(resolve_source(SourceConfig(path=str(data)), "chats"), None)
    UnitEncoder(Recipe(spec(max_length=SHORT), "messages", {}, folder)).run(unit)
    return folder


def longest(data: Path, cache: Path, **options: Any) -> int:
    return int(Store(prepare(data, cache, **options).path).lengths.max())


def test_force_does_not_continue_what_was_begun_without_it(data: Path, cache: Path) -> None:
    begun(data, cache)
    assert longest(data, cache, force_recache=True) > SHORT
    assert not list((cache / "units").iterdir())


def test_what_was_begun_is_continued_as_it_was_begun(data: Path, cache: Path) -> None:
    plain, forced = begun(data, cache), begun(data, cache, force_recache=True)
    assert longest(data, cache) == SHORT
    assert [path.name for path in (cache / "units").iterdir()] == [forced.name]
    assert plain.name != forced.name
    assert longest(data, cache, force_recache=True) == SHORT
    assert not list((cache / "units").iterdir())


def test_a_workspace_that_somebody_removes_is_begun_again(data: Path, cache: Path, tmp_path: Path) -> None:
    times = []

    def remove() -> None:
        times.append(1)
        if len(times) < 3:
            shutil.rmtree(next(path for path in cache.glob("units/*") if path.is_dir()))

    prepared = prepare(data, cache, progress=At(done=remove))
    assert len(times) == 3
    assert content(prepared.store_path) == content(prepare(data, tmp_path / "other").store_path)


def test_a_workspace_that_is_removed_again_and_again_is_an_error(data: Path, cache: Path) -> None:
    progress = At(done=lambda: [shutil.rmtree(path) for path in cache.glob("units/*") if path.is_dir()])
    with pytest.raises(FolderGone, match="was removed while it was in use") as caught:
        prepare(data, cache, progress=progress)
    assert caught.value.exit_code == 3
    assert not list((cache / "stores").iterdir())


def test_who_was_overtaken_finds_the_other_ones_store(data: Path, cache: Path) -> None:
    def overtake() -> None:
        # As another process does that took this one for dead.
        for lease in cache.glob("units/*.lease"):
            lease.unlink()
        prepare(data, cache)

    prepared = prepare(data, cache, progress=At(done=overtake))
    assert prepared.reused
    assert [path.name for path in (cache / "stores").iterdir()] == [prepared.identity]
    assert not list((cache / "units").iterdir())


def test_a_workspace_left_after_its_store_was_published_is_removed_unless_held(data: Path, cache: Path) -> None:
    folder = begun(data, cache)
    shutil.copytree(folder, cache / "kept")
    prepare(data, cache)
    shutil.copytree(cache / "kept", folder)
    lease = Lease(folder.with_name(f"{folder.name}.lease"))
    lease.acquire()
    assert prepare(data, cache).reused
    assert folder.is_dir()
    lease.release()
    assert prepare(data, cache, progress=Silent()).reused
    assert not list((cache / "units").iterdir())
