"""Digests are of content, and are remembered exactly as long as a file stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.data.render import RenderSpec
from arrowtune.data.tokenizer import read_tokenizer
from arrowtune.fingerprint import FileState, Memory, differences, digest_bytes, digest_file, digest_json, write_atomic
from support.assets import TINY

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(st.dictionaries(st.text(), plain, max_size=5))
def test_the_order_of_keys_does_not_matter(tree: dict[str, object]) -> None:
    assert digest_json(tree) == digest_json(dict(reversed(list(tree.items()))))


def test_a_file_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    data = os.urandom((1 << 20) + 17)
    (tmp_path / "file").write_bytes(data)
    assert digest_file(tmp_path / "file") == digest_bytes(data)


def test_differences_are_named() -> None:
    assert differences({"a": "1", "b": "2"}, {"b": "3", "c": "4"}) == ["a", "b", "c"]


def test_facts_are_remembered_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("one")
    memory = Memory(tmp_path / "memory")
    before = FileState.of(str(path))
    memory.learn(before, "digest", "abc")
    memory.save()
    again = Memory(tmp_path / "memory")
    assert again.recall(before, "digest") == "abc"
    assert again.recall(before, "other") is None
    path.write_text("two")
    os.utime(path, ns=(before.mtime_ns, before.mtime_ns))
    assert again.recall(FileState.of(str(path)), "digest") is None


def test_two_that_learn_at_once_keep_what_both_have_learnt(tmp_path: Path) -> None:
    states = []
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        states.append(FileState.of(str(tmp_path / name)))
    first, second = Memory(tmp_path / "memory"), Memory(tmp_path / "memory")
    for memory in (first, second):
        assert memory.recall(states[0], "digest") is None
    first.learn(states[0], "digest", "abc")
    first.learn(states[1], "digest", "def")
    second.learn(states[0], "format", "messages")
    first.save()
    second.refresh()
    for memory in (second, Memory(tmp_path / "memory")):
        assert memory.recall(states[0], "digest") == "abc"
        assert memory.recall(states[0], "format") == "messages"
        assert memory.recall(states[1], "digest") == "def"


def test_a_file_that_has_just_changed_is_not_trusted_yet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    now = time.time_ns()
    young, old = FileState(str(path), 1, now, now, 1), FileState(str(path), 1, 0, now - 10**9, 1)
    assert not young.settled()
    assert old.settled()


def test_a_torn_memory_is_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    memory = Memory(tmp_path / "memory")
    memory.learn(FileState.of(str(path)), "digest", "abc")
    memory.save()
    [file] = (tmp_path / "memory").iterdir()
    file.write_bytes(file.read_bytes()[:5])
    assert Memory(tmp_path / "memory").recall(FileState.of(str(path)), "digest") is None


def test_an_atomic_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with pytest.raises(TypeError):
        write_atomic(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_B45_the_identity_is_the_same_after_use_and_in_another_process() -> None:
    code = (
        "from pathlib import Path\n"
        "from arrowtune.data.render import RenderSpec, Renderer\n"
        "from arrowtune.data.tokenizer import read_tokenizer\n"
        "from arrowtune.types import Completion, Origin\n"
        f"spec = RenderSpec(read_tokenizer(Path({str(TINY)!r})))\n"
        "Renderer(spec).encode([Completion('a' * 9999, 'b', Origin('f', 0))])\n"
        "print(sorted(spec.identity().items()))"
    )
    expected = str(sorted(RenderSpec(read_tokenizer(TINY)).identity().items()))
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
