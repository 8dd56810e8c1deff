"""`arrowtune cache`: what is there, what may go, and what never does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from arrowtune.data.cache import entries
from arrowtune.data.lease import Lease
from arrowtune.data.prune import Wish, prune, seconds_of
from arrowtune.data.store import Store
from arrowtune.errors import ConfigError
from arrowtune.view.cached import age, cached_text, size
from support.cli import arrowtune
from support.prepare import PreparedStore, chat, chats, prepare, spec, write_lines

DAY = 86400.0


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def made(cache: Path, name: str, length: int, days: float) -> PreparedStore:
    """A store that was used so many days ago."""
    path = write_lines(cache.parent / f"{name}.jsonl", [*chats(9), chat(name, name)])
    store = prepare(path, cache, name=name, rendering=spec(max_length=length))
    aged(store.store_path, days)
    return store


def aged(path: Path, days: float) -> Path:
    past = time.time() - days * DAY
    for one in [*path.rglob("*"), path]:
        os.utime(one, (past, past))
    return path


def unfinished(cache: Path, name: str) -> Path:
    folder = cache / "units" / name
    folder.mkdir(parents=True)
    (folder / "unit.arrow").write_bytes(bytes(1000))
    (folder / "about.json").write_text(json.dumps({"name": "chats", "role": "train", "path": "/data/chats.jsonl"}))
    return folder


def names(found: Iterable[Any]) -> set[str]:
    return {entry.path.name for entry in found}


def test_what_is_listed(cache: Path) -> None:
    store = made(cache, "one", 64, days=3)
    folder = unfinished(cache, "abc")
    aged(cache / "units", 2)
    tokenizer = cache / "tokenizers" / "def"
    tokenizer.mkdir(parents=True)
    (tokenizer / "tokenizer.json").write_bytes(bytes(500))
    listed = {entry.kind: entry for entry in entries(cache)}
    assert set(listed) == {"store", "unfinished", "tokenizer"}
    found = listed["store"]
    assert (found.path, found.name, found.role, found.rows, found.tokens) == (store.store_path, "one", "train", 10, store.tokens)
    assert found.size == sum(path.stat().st_size for path in store.store_path.iterdir())
    assert found.age == pytest.approx(3 * DAY, abs=600)
    assert (found.inputs["max_length"], found.source) == ("64", str(cache.parent / "one.jsonl"))
    assert (found.state, found.held) == ("", "")
    assert (listed["unfinished"].path, listed["unfinished"].name, listed["unfinished"].source) == (
        folder,
        "chats",
        "/data/chats.jsonl",
    )
    assert listed["tokenizer"].size == 500
    assert "one     train  messages, max_length 64" in cached_text(cache, entries(cache))


def test_stores_that_no_one_reads_say_why(cache: Path) -> None:
    old, torn, replaced = (made(cache, name, 64 + k, days=3).store_path for k, name in enumerate(("old", "torn", "replaced")))
    manifest = json.loads((old / "manifest.json").read_text())
    (old / "manifest.json").write_text(json.dumps({**manifest, "version": 0}))
    (torn / "lengths.npy").unlink()
    data = replaced / "data-00000.arrow"
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    prepare(cache.parent / "replaced.jsonl", cache, name="replaced", rendering=spec(max_length=66), force_recache=True)
    (cache / "stores" / "rubbish").mkdir()
    states = {entry.path.name: entry.state for entry in entries(cache)}
    assert states[old.name] == "of version 0, which this arrowtune does not read"
    assert states[torn.name].startswith("torn: ")
    assert states[replaced.name] == "superseded"
    assert states[f"{replaced.name}.2"] == ""
    assert states["rubbish"].startswith("torn: manifest.json cannot be read")


def test_by_age_and_number(cache: Path) -> None:
    stores = {f"{name}{days}": made(cache, name, 60 + days, days) for name in ("a", "b") for days in (1, 5, 9)}
    by_path = {store.store_path: key for key, store in stores.items()}

    def gone(wish: Wish) -> set[str]:
        return {by_path[entry.path] for entry in prune(cache, wish, dry_run=True).removed}

    assert gone(Wish()) == set()
    assert gone(Wish(older_than=4 * DAY)) == {"a5", "a9", "b5", "b9"}
    assert gone(Wish(keep=1)) == {"a5", "a9", "b5", "b9"}
    assert gone(Wish(keep=2)) == {"a9", "b9"}
    assert gone(Wish(keep=1, older_than=7 * DAY)) == {"a9", "b9"}
    assert gone(Wish(keep=0)) == set(stores)
    assert len(list((cache / "stores").iterdir())) == 6
    pruned = prune(cache, Wish(keep=1, older_than=7 * DAY))
    assert pruned.freed == sum(entry.size for entry in pruned.removed) > 0
    assert names(entries(cache)) == {Path(stores[key].path).name for key in ("a1", "a5", "b1", "b5")}


def test_an_old_version_goes_by_the_same_rules(cache: Path) -> None:
    store = made(cache, "a", 64, days=30)
    manifest = store.store_path / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 0}))
    aged(store.store_path, 30)
    assert not prune(cache, Wish(unfinished=True)).removed
    assert not prune(cache, Wish(older_than=31 * DAY)).removed
    assert len(prune(cache, Wish(older_than=29 * DAY)).removed) == 1


def test_what_was_used_a_moment_ago_stays_and_is_told(cache: Path) -> None:
    store = made(cache, "a", 64, days=30)
    other = made(cache, "b", 65, days=30)
    Store(store.path)  # Read, here or on another machine.
    pruned = prune(cache, Wish(keep=0))
    assert names(pruned.removed) == {Path(other.path).name}
    assert names(pruned.held) == {Path(store.path).name}
    assert store.store_path.is_dir()


def test_a_store_that_a_process_has_mapped_stays_however_old(cache: Path) -> None:
    store = made(cache, "a", 64, days=30)
    code = "import sys; from arrowtune.data.store import Store; s = Store(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    reader = subprocess.Popen([sys.executable, "-c", code, store.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "1\n"
    aged(store.store_path, 30)
    pruned = prune(cache, Wish(keep=0))
    assert (names(pruned.removed), [entry.held for entry in pruned.held]) == (set(), ["a process of this machine reads it"])
    reader.communicate()
    assert names(prune(cache, Wish(keep=0)).removed) == {store.store_path.name}


def test_unfinished_work_goes_unless_somebody_does_it(cache: Path) -> None:
    idle, busy, dead, elsewhere, silent = (unfinished(cache, name) for name in ("idle", "busy", "dead", "elsewhere", "silent"))
    leases = {folder: Lease(folder.with_name(f"{folder.name}.lease")) for folder in (busy, dead, elsewhere, silent)}
    for lease in leases.values():
        lease.acquire()
    for folder, change in ((dead, {"born": "long ago"}), (elsewhere, {"machine": "other"}), (silent, {"machine": "other"})):
        path = leases[folder].path
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    aged(leases[silent].path, 1)
    assert not prune(cache, Wish(keep=0)).removed
    assert names(prune(cache, Wish(unfinished=True), dry_run=True).removed) == {"idle", "dead", "silent"}
    pruned = prune(cache, Wish(unfinished=True))
    assert names(pruned.removed) == {"idle", "dead", "silent"}
    assert names(pruned.held) == {"busy", "elsewhere"}
    assert {path.name for path in (cache / "units").iterdir()} == {"busy", "busy.lease", "elsewhere", "elsewhere.lease"}
    assert idle.parent.is_dir()


def test_what_killed_processes_left_goes(cache: Path) -> None:
    made(cache, "a", 64, days=1)
    for left in ("stores/.tmp-old", "units/.gone-x", "tokenizers/.tmp-y", "stores/.tmp-mine", "digests"):
        (cache / left).mkdir(parents=True, exist_ok=True)
        aged(cache / left, 0.5)
    (cache / "digests" / ".tmp-z").write_text("{}")
    aged(cache / "digests" / ".tmp-z", 0.5)
    from arrowtune.data.lease import this_process

    (cache / "stores" / ".tmp-mine" / ".owner").write_text(json.dumps(this_process()))
    assert names(prune(cache, Wish()).removed) == {".tmp-old", ".gone-x", ".tmp-y", ".tmp-z"}
    assert (cache / "stores" / ".tmp-mine").is_dir()


def test_a_cache_that_is_not_there(cache: Path) -> None:
    assert entries(cache) == []
    assert prune(cache, Wish(keep=0, older_than=0, unfinished=True)).freed == 0
    assert not cache.exists()


def test_time_spans_sizes_and_ages() -> None:
    assert [seconds_of(text) for text in ("90s", "5m", "12h", "30d", "1.5w")] == [90, 300, 43200, 30 * DAY, 10.5 * DAY]
    with pytest.raises(ConfigError, match="'a month' is no time span"):
        seconds_of("a month")
    assert [size(number) for number in (0, 999, 1000, 999_499, 999_600, 3 * 10**12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "999.5 kB",
        "1.0 MB",
        "3.0 TB",
    ]
    assert [age(number) for number in (5, 61, 7200, 3 * DAY)] == ["now", "1 min", "2 h", "3 d"]


def test_the_commands(cache: Path) -> None:
    store = made(cache, "a", 64, days=3)
    listed = json.loads(arrowtune("cache", "list", "--json", "--cache-dir", cache).stdout)
    assert [entry["path"] for entry in listed["entries"]] == [store.path]
    tried = arrowtune("cache", "prune", "--older-than", "2d", "--dry-run", ARROWTUNE_CACHE=str(cache))
    assert tried.stdout.splitlines()[-1] == f"would free {size(listed['size'])} ({listed['size']:,} bytes)"
    done = json.loads(arrowtune("cache", "prune", "--keep", "0", "--json", "--cache-dir", cache).stdout)
    assert (done["freed"], [entry["path"] for entry in done["removed"]]) == (listed["size"], [store.path])
    wrong = arrowtune("cache", "prune", "--older-than", "soon")
    assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (2, "error: 'soon' is no time span")
