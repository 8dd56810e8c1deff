"""Checkpoints are complete or absent: every way a save can end, and what is chosen afterwards."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from arrowtune.errors import CheckpointError
from arrowtune.training.checkpoint import MARKER, Checkpoints
from arrowtune.training.complete import publish

TESTS = Path(__file__).parents[1]
STATE = {"progress": {"step": 1}, "plan": {"seed": "1"}}


class OneRank:
    rank = 0

    def gather(self, value: Any) -> list[Any]:
        return [value]


def checkpoints(folder: Path, keep: int = 3) -> Checkpoints:
    return Checkpoints(folder, keep=keep, ranks=OneRank())


def writer(text: str = "weights") -> Callable[[Path], list[Path]]:
    def write(folder: Path) -> list[Path]:
        (folder / "shard").mkdir()
        (folder / "shard" / "0.bin").write_text(text)
        (folder / ".metadata").write_text("m")
        return [folder / "shard" / "0.bin"]

    return write


def save(folder: Path, *steps: int, keep: int = 9, state: dict[str, Any] = STATE) -> Path:
    for step in steps:
        path = checkpoints(folder, keep).save(step, state, writer(f"weights of {step}"))
    return path


def test_what_was_saved_comes_back_with_its_state(tmp_path: Path) -> None:
    path = save(tmp_path, 5)
    assert path == tmp_path / "step-00000005"
    found = checkpoints(tmp_path).newest()
    assert found is not None
    assert (found.path, found.step, found.state) == (path, 5, STATE)
    listed = {entry["name"] for entry in json.loads((path / MARKER).read_text())["files"]}
    assert listed == {"shard/0.bin", ".metadata"}


def test_the_marker_lists_every_file_whoever_speaks_of_it(tmp_path: Path) -> None:
    path = save(tmp_path, 5)
    files = json.loads((path / MARKER).read_text())["files"]
    # Only the first of them was named by the writer.
    assert files == [
        {"name": name, "bytes": len(text), "xxh3": xxhash.xxh3_128_hexdigest(text)}
        for name, text in ((".metadata", b"m"), ("shard/0.bin", b"weights of 5"))
    ]


def test_a_file_that_only_another_machine_sees_is_an_error_and_no_checkpoint(tmp_path: Path) -> None:
    partial, final = tmp_path / "step-00000005.partial", tmp_path / "step-00000005"
    partial.mkdir()
    (partial / "0.bin").write_text("weights")
    elsewhere = {"name": "1.bin", "bytes": 7, "xxh3": "0" * 32}
    for seen in (None, "half"):
        if seen:
            (partial / "1.bin").write_text(seen)
        with pytest.raises(CheckpointError, match=r"rank 0 does not see 1\.bin") as caught:
            publish(partial, final, {"step": 5, "state": STATE}, [elsewhere])
        assert "storage that all nodes share" in caught.value.hint
    assert not final.exists()
    assert not (partial / MARKER).exists()


def test_a_checkpoint_from_before_every_rank_spoke_of_its_files_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000007"
    folder.mkdir()
    (folder / "0.bin").write_text("weights")
    (folder / MARKER).write_text(
        '{"format": 1, "saves": 2, "step": 7, "world_size": 1, "state": {"plan": {"seed": "1"}},'
        ' "files": [{"name": "0.bin", "bytes": 7, "xxh3": "bdbda1eb6e05adc4800d98e5524fefbc"}]}'
    )
    save(tmp_path, 8)
    assert [checkpoints(tmp_path).at(path).step for path in (folder, tmp_path / "step-00000008")] == [7, 8]
    assert json.loads((tmp_path / "step-00000008" / MARKER).read_text())["saves"] == 3


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoints(tmp_path / "nothing").newest() is None


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: (path / MARKER).unlink(), "incomplete"),
        (lambda path: (path / "shard/0.bin").unlink(), "lacks its file"),
        (lambda path: os.truncate(path / "shard/0.bin", 3), "3 bytes"),
        (lambda path: os.truncate(path / "shard/0.bin", 0), "0 bytes"),
        (lambda path: (path / "shard/0.bin").write_text("Weights of 7"), "damaged"),
        (lambda path: (path / MARKER).write_text("{"), "cannot be read"),
        (lambda path: (path / MARKER).write_text('{"format": 99}'), "another version"),
    ],
)
def test_B71_a_damaged_checkpoint_is_passed_over_and_said(tmp_path: Path, damage: Callable[[Path], object], says: str) -> None:
    save(tmp_path, 3, 7)
    damage(tmp_path / "step-00000007")
    found = checkpoints(tmp_path)
    newest = found.newest()
    assert newest is not None
    assert newest.step == 3
    (reason,) = found.passed_over
    assert says in reason
    with pytest.raises(CheckpointError, match=says):
        found.at(tmp_path / "step-00000007")


def test_when_every_complete_checkpoint_is_damaged_nothing_is_started_over(tmp_path: Path) -> None:
    save(tmp_path, 3, 7)
    os.truncate(tmp_path / "step-00000003" / "shard/0.bin", 1)
    (tmp_path / "step-00000007" / MARKER).write_text("{")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read") as caught:
        checkpoints(tmp_path).newest()
    assert "step-00000003/shard/0.bin has 1 bytes" in caught.value.message
    assert "step-00000007/complete.json cannot be read" in caught.value.message
    assert "checkpoint.resume: PATH" in caught.value.hint


def test_interrupted_saves_alone_are_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 3)
    (tmp_path / "step-00000003" / MARKER).unlink()
    found = checkpoints(tmp_path)
    assert found.newest() is None
    assert "incomplete" in found.passed_over[0]


@pytest.mark.parametrize("aside", ["step-00000007.partial", "step-00000007.replaced.partial"])
def test_a_checkpoint_that_lost_only_its_name_is_found_again(tmp_path: Path, aside: str) -> None:
    save(tmp_path, 3, 7)
    (tmp_path / "step-00000007").rename(tmp_path / aside)
    newest = checkpoints(tmp_path).newest()
    assert newest is not None
    assert newest.path == tmp_path / "step-00000007"


def test_what_is_half_removed_is_never_found_again(tmp_path: Path) -> None:
    save(tmp_path, 3, 7)
    (tmp_path / "step-00000007").rename(tmp_path / "step-00000007.removed.partial")
    save(tmp_path / "b", 3, 7)
    (tmp_path / "b" / "step-00000007").rename(tmp_path / "b" / "step-00000007.partial")
    (tmp_path / "b" / "step-00000007.partial" / ".metadata").unlink()
    for folder in (tmp_path, tmp_path / "b"):
        newest = checkpoints(folder).newest()
        assert newest is not None
        assert newest.step == 3


def test_a_save_that_fails_leaves_the_older_ones_and_no_trace(tmp_path: Path) -> None:
    save(tmp_path, 3)

    def full(folder: Path) -> list[Path]:
        (folder / "0.bin").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CheckpointError, match="No space left"):
        checkpoints(tmp_path).save(4, STATE, full)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_a_save_that_was_killed_is_swept_by_the_next_and_never_loaded(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def killed(folder: Path) -> list[Path]:
        writer()(folder)
        raise Killed

    save(tmp_path, 3)
    with pytest.raises(Killed):
        checkpoints(tmp_path).save(4, STATE, killed)
    newest = checkpoints(tmp_path).newest()
    assert newest is not None
    assert newest.step == 3
    save(tmp_path, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000005"]


def test_the_newest_stay_and_foreign_folders_are_never_touched(tmp_path: Path) -> None:
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "precious").write_text("not ours: no marker")
    save(tmp_path, 90, state={"plan": {"seed": "of another run"}})
    save(tmp_path, 2, 3, 4, 5, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000001",
        "step-00000004",
        "step-00000005",
        "step-00000090",
    ]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 4)
    checkpoints(tmp_path).save(4, STATE, writer("new weights"))
    assert (tmp_path / "step-00000004" / "shard" / "0.bin").read_text() == "new weights"
    save(tmp_path, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]


def test_what_was_just_saved_stays_below_older_steps_too(tmp_path: Path) -> None:
    save(tmp_path, 10, keep=1)
    assert save(tmp_path, 6, keep=1).is_dir()


def test_the_newest_is_what_was_saved_last_not_the_highest_step(tmp_path: Path) -> None:
    save(tmp_path, 3, 6, 9)
    save(tmp_path, 4)  # by a run that was continued from step 3
    newest = checkpoints(tmp_path).newest()
    assert newest is not None
    assert newest.step == 4
    save(tmp_path, 5, 6, keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005", "step-00000006"]


def test_the_same_step_is_not_written_twice_by_one_run(tmp_path: Path) -> None:
    one = checkpoints(tmp_path)
    path = one.save(5, STATE, writer())
    before = (path / MARKER).stat().st_mtime_ns
    assert one.save(5, STATE, writer("more")) == path
    assert (path / MARKER).stat().st_mtime_ns == before


def test_what_is_not_ours_is_set_aside_when_it_is_in_the_way(tmp_path: Path) -> None:
    for _ in range(2):
        (tmp_path / "step-00000005").mkdir(exist_ok=True)
        (tmp_path / "step-00000005" / "precious").write_text("no marker")
        save(tmp_path, 5)
        (tmp_path / "step-00000005" / MARKER).unlink()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-00000005", "step-00000005.set-aside", "step-00000005.set-aside-1"]
    assert (tmp_path / "step-00000005.set-aside" / "precious").exists()


@pytest.mark.parametrize("before", [pytest.param(1, id="another step"), pytest.param(2, id="the same step")])
def test_B71_killed_at_any_moment_a_complete_checkpoint_is_left_and_the_next_save_works(tmp_path: Path, before: int) -> None:
    command = [sys.executable, "-m", "support.killed_saves", str(tmp_path), str(before)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kills, old, new = map(int, done.stdout.split())
    assert kills > 15
    assert old > 5
    assert new > 2
