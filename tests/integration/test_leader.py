"""What rank 0 does alone in a run fails on both ranks, as the same error, and neither waits for the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arrowtune.errors import ConfigError
from arrowtune.settle import Inputs, settle
from support.ranks import run_ranks
from support.run import config, events
from support.together import train_in_spoiled_folders


def spoiled(folder: Path, name: str, **sections: Any) -> tuple[Any, Inputs]:
    """A run of one step with a folder where it would write a file of its own."""
    (folder / "run" / name).mkdir(parents=True)
    (folder / "run" / name / "precious").write_text("not ours")
    run = config(folder, strategy={"name": "fsdp"}, train={"steps": 1}, batch={"examples": 8}, **sections)
    return run, settle(run)


def test_trackers_resolved_json_and_exports_of_rank_0(tmp_path: Path) -> None:
    runs = [
        spoiled(tmp_path / "trackers", "metrics.jsonl"),
        spoiled(tmp_path / "resolved", "resolved.json"),
        spoiled(tmp_path / "export", "export", export={"at_end": True}),
    ]
    first, second = run_ranks(2, train_in_spoiled_folders, runs)
    assert first == second
    assert [failure.split(":")[0] for failure in first] == [ConfigError.__name__, ConfigError.__name__, "ExportError"]
    assert "metrics.jsonl cannot be written" in first[0]
    assert "was not written by an export" in first[2]
    assert [event["event"] for event in events(tmp_path / "export", "warning")] == ["warning"]
