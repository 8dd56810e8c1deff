"""With `data.disable_cache` the stores live in the run folder, and not longer than the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arrowtune import Callback, SFTConfig, SFTTrainer, evaluate, prepare, train
from arrowtune.training.callbacks import Run
from arrowtune.types import StepStats
from support.prepare import chats, write_lines


@pytest.fixture
def config(tmp_path: Path) -> SFTConfig:
    write_lines(tmp_path / "chats.jsonl", chats(40))
    tree: dict[str, Any] = {
        "output_dir": str(tmp_path / "run"),
        "data": {
            "train": [str(tmp_path / "chats.jsonl")],
            "eval": [{"path": str(tmp_path / "chats.jsonl"), "limit": 5}],
            "max_length": 64,
            "disable_cache": True,
            "cache_dir": str(tmp_path / "cache"),
        },
        "batch": {"examples": 8},
        "train": {"steps": 4},
        "strategy": {"name": "reference"},
        "export": {"at_end": False},
        "track": ["jsonl"],
    }
    return SFTConfig.parse(tree)


def stores(folder: Path) -> list[str]:
    """Every data file of a store below a folder."""
    return [path.name for path in folder.rglob("*.arrow")]


class Look(Callback):
    """Remembers the stores that are there while it trains, and fails when asked to."""

    def __init__(self, folder: Path, fail: bool = False) -> None:
        self.seen: list[str] = []
        self._folder, self._fail = folder, fail

    def on_step(self, run: Run, stats: StepStats) -> None:
        self.seen = stores(self._folder)
        if self._fail:
            raise RuntimeError("a callback failed")


def test_they_are_there_while_it_trains_and_gone_afterwards(config: SFTConfig, tmp_path: Path) -> None:
    look = Look(config.run_dir)
    with SFTTrainer(config, [look]) as trainer:
        trainer.train()
    assert len(look.seen) == 2
    assert stores(tmp_path) == []
    assert not (config.run_dir / "stores").exists()
    assert not (tmp_path / "cache").exists()


def test_they_are_gone_after_a_failure_too(config: SFTConfig, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), SFTTrainer(config, [Look(config.run_dir, fail=True)]) as trainer:
        trainer.train()
    assert stores(tmp_path) == []


def test_a_run_continues_with_stores_of_its_own_made_again(config: SFTConfig, tmp_path: Path) -> None:
    assert train(config.model_copy(update={"train": config.train.model_copy(update={"max_steps": 2})})).progress.step == 2
    assert stores(tmp_path) == []
    result = train(config)
    assert (result.started_at, result.progress.step) == (2, 4)
    assert result.checkpoint is not None
    [measured] = evaluate(config, result.checkpoint)
    assert measured.trained_tokens > 0
    assert stores(tmp_path) == []
    assert [path.name for path in config.run_dir.iterdir() if path.name.startswith("stores")] == []


def test_prepare_alone_keeps_what_it_was_asked_for(config: SFTConfig) -> None:
    prepared = prepare(config)
    assert [store.store_path.parent.parent for store in prepared] == [config.run_dir / "stores"] * 2
    assert all((store.store_path / "manifest.json").is_file() for store in prepared)
