"""What a checkpoint was trained with is kept with it: tokenizer, template, and where its relative paths start."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from arrowtune import CheckpointError, ConfigError, SFTConfig, api
from arrowtune.origin import run_of, trained_with
from support.assets import TINY
from support.run import config, train

TEMPLATE = (TINY / "chat_template.jinja").read_text()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SFTConfig:
    """A trained run whose model is a folder beside it, named from there, with a template of its own."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TINY, "models/a/base")
    Path("my.jinja").write_text(TEMPLATE)
    run = config(tmp_path, model={"path": "models/a/base"}, tokenizer={"chat_template": "my.jinja"}, train={"steps": 1})
    train(run)
    return run


def checkpoint(folder: Path) -> Path:
    return folder / "run" / "checkpoints" / "step-00000001"


def test_the_template_of_the_training_outlives_its_file(run: SFTConfig, tmp_path: Path) -> None:
    Path("my.jinja").write_text("edited")
    shutil.rmtree("models")
    kept = trained_with(run, checkpoint(tmp_path)).tokenizer
    assert kept.chat_template == TEMPLATE
    assert kept.json_path.read_bytes() == (TINY / "tokenizer.json").read_bytes()


def test_it_is_kept_once_for_each_content(run: SFTConfig, tmp_path: Path) -> None:
    train(run.model_copy(update={"train": run.train.model_copy(update={"steps": 2})}))
    assert len(list((tmp_path / "run" / "tokenizers").iterdir())) == 1


def test_a_kept_file_that_was_changed_is_refused(run: SFTConfig, tmp_path: Path) -> None:
    (kept,) = (tmp_path / "run" / "tokenizers").iterdir()
    (kept / "chat_template.jinja").write_text("edited")
    with pytest.raises(CheckpointError, match="a file was changed"):
        trained_with(run, checkpoint(tmp_path))
    shutil.rmtree(kept)
    with pytest.raises(CheckpointError, match="is gone"):
        trained_with(run, checkpoint(tmp_path))


def test_relative_paths_start_where_the_run_was_started(run: SFTConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run_of(Path("../run/checkpoints/step-00000001")).model.path == str(tmp_path / "models/a/base")
    shutil.rmtree(tmp_path / "models")
    with pytest.raises(ConfigError, match=rf"model.path models/a/base was a folder in {tmp_path}, and is not there"):
        run_of(checkpoint(tmp_path))


def test_a_checkpoint_outside_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a checkpoint inside a run"):
        run_of(tmp_path / "step-00000001")


def test_measuring_says_what_was_otherwise_in_the_training(
    run: SFTConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        api.evaluate(run, checkpoint(tmp_path))
    assert caplog.messages == []
    Path("my.jinja").write_text(TEMPLATE + "{# edited #}")
    with caplog.at_level(logging.WARNING):
        api.evaluate(run, checkpoint(tmp_path))
    (message,) = caplog.messages
    assert "was trained with another chat_template; the sets are measured with the run's" in message


def test_resolved_json_says_where_the_run_was_started(run: SFTConfig, tmp_path: Path) -> None:
    assert json.loads((tmp_path / "run" / "resolved.json").read_text())["started_in"] == str(tmp_path)
