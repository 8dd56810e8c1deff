"""How runs end, and what the next start makes of it: what is owed is done, what is done is left alone."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from arrowtune import Callback, CheckpointError, ConfigError, ExportError, SFTTrainer, api
from arrowtune.errors import Interrupted
from arrowtune.training.callbacks import Run
from arrowtune.types import EvalStats, StepStats
from support.run import Diary, config, content, events, lines, train


class Terminated(Callback):
    """Sends this process a signal after a step, or after an evaluation."""

    def __init__(self, *, step: int = 0, evaluation: int = -1) -> None:
        self._step, self._evaluation = step, evaluation

    def on_step(self, run: Run, stats: StepStats) -> None:
        if stats.step == self._step:
            signal.raise_signal(signal.SIGTERM)

    def on_evaluated(self, run: Run, stats: EvalStats) -> None:
        if stats.step == self._evaluation:
            signal.raise_signal(signal.SIGTERM)


class Unwound(BaseException):
    """What the command line's own handler raises."""


@contextmanager
def unwinding() -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        raise Unwound

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_run_stopped_at_its_last_step_owes_its_evaluation(tmp_path: Path) -> None:
    run = config(tmp_path, train={"steps": 3})
    with pytest.raises(Interrupted, match=r"SIGTERM after step 3; the checkpoint is .*step-00000003") as caught:
        train(run, Terminated(step=3))
    assert caught.value.exit_code == 143
    assert lines(tmp_path, "eval") == []
    diary = Diary()
    result = train(run, diary)
    assert diary.entries == ["start 3", "evaluated 3", "end 3"]
    assert (result.started_at, result.progress.step, result.idle) == (3, 3, False)
    assert len(lines(tmp_path, "train")) == 3


def test_a_signal_during_the_last_evaluation_ends_it_at_once_and_the_next_start_measures_again(tmp_path: Path) -> None:
    run = config(tmp_path, train={"steps": 3})
    with unwinding(), pytest.raises(Unwound):
        train(run, Terminated(evaluation=3))
    diary = Diary()
    train(run, diary)
    assert diary.entries == ["start 3", "evaluated 3", "end 3"]
    assert train(run).idle


def test_the_same_signal_from_two_senders_at_once_is_one_wish(tmp_path: Path) -> None:
    """A scheduler signals every process of a job, and the launcher passes its signal on."""
    with pytest.raises(Interrupted, match="after step 2"):
        train(config(tmp_path, train={"steps": 3}), Terminated(step=2), Terminated(step=2))


def test_signals_are_handled_as_before_once_a_run_is_over(tmp_path: Path) -> None:
    before = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(Interrupted):
        train(config(tmp_path, train={"steps": 3}), Terminated(step=1))
    assert [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)] == before


def by_trainer(run: Any) -> Any:
    return train(run)


def by_api(run: Any) -> Any:
    return api.train(run)


@pytest.mark.parametrize("again", [by_trainer, by_api])
@pytest.mark.parametrize("sections", [{}, {"checkpoint": {"at_end": False}}, {"eval": {"at_end": False}}])
def test_a_finished_run_is_left_alone_to_the_byte(tmp_path: Path, sections: dict[str, Any], again: Callable[[Any], Any]) -> None:
    run = config(tmp_path, train={"steps": 3}, **sections)
    train(run)
    before = content(tmp_path)
    result = again(run)
    assert (result.idle, result.started_at, result.progress.step, result.finished) == (True, 3, 3, True)
    assert result.progress.tokens == sum(line["tokens"] for line in lines(tmp_path, "train"))
    assert content(tmp_path) == before


def test_a_finished_run_without_a_checkpoint_has_nothing_to_measure(tmp_path: Path) -> None:
    run = config(tmp_path, train={"steps": 1}, checkpoint={"at_end": False})
    train(run)
    with SFTTrainer(run) as trainer, pytest.raises(CheckpointError, match="ended at step 1 without a checkpoint"):
        trainer.evaluate()


def test_a_run_stopped_by_max_steps_is_left_alone_until_more_are_allowed(tmp_path: Path) -> None:
    short, long = (config(tmp_path, train={"steps": 6, **more}) for more in ({"max_steps": 2}, {}))
    train(short)
    before = content(tmp_path)
    assert train(short).idle
    assert content(tmp_path) == before
    assert train(long).progress.step == 6


def test_what_is_asked_for_later_is_owed(tmp_path: Path) -> None:
    train(config(tmp_path, train={"steps": 2}, eval={"at_end": False}))
    diary = Diary()
    train(config(tmp_path, train={"steps": 2}), diary)
    assert diary.entries == ["start 2", "evaluated 2", "end 2"]


def test_a_failed_last_export_is_an_error_after_everything_else_and_is_owed(tmp_path: Path) -> None:
    run = config(tmp_path, train={"steps": 2}, export={"at_end": True})
    diary = Diary()
    with pytest.raises(ExportError, match="no model to export"):
        train(run, diary)
    assert diary.entries == ["start 0", "step 1", "step 2", "saved step-00000002", "evaluated 2"]
    diary = Diary()
    with pytest.raises(ExportError):
        train(run, diary)
    assert diary.entries == ["start 2"]
    assert train(config(tmp_path, train={"steps": 2})).idle


def test_a_failed_export_during_the_run_is_a_warning(tmp_path: Path) -> None:
    result = train(config(tmp_path, train={"steps": 5}, export={"at_end": False, "every": 2}))
    assert result.progress.step == 5
    warnings = [(line["step"], line["message"]) for line in events(tmp_path, "warning")]
    assert warnings == [(step, "the reference backend has no model to export") for step in (2, 4)]


def test_exports_are_done_when_owed_and_only_then(tmp_path: Path) -> None:
    run = config(tmp_path, train={"steps": 2}, strategy={"name": "fsdp"}, export={"at_end": True})
    export = tmp_path / "run" / "export"
    with pytest.raises(Interrupted):
        train(run, Terminated(step=2))
    assert not export.exists()
    train(run)
    assert (export / "model.safetensors").exists()
    before = content(tmp_path)
    assert train(run).export == export
    assert content(tmp_path) == before
    shutil.rmtree(export)
    diary = Diary()
    assert train(run, diary).export == export
    assert diary.entries == ["start 2", "end 2"]
    train(config(tmp_path, train={"steps": 2}, strategy={"name": "fsdp"}, export={"at_end": True, "dtype": "bfloat16"}))
    assert '"bfloat16"' in (export / "config.json").read_text()


def no_room(folder: Path) -> None:
    """Nothing can be saved: where the checkpoints go is a file."""
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "checkpoints").write_text("")


def test_a_failed_last_checkpoint_is_an_error_after_the_evaluation(tmp_path: Path) -> None:
    no_room(tmp_path)
    with pytest.raises(CheckpointError, match="step-00000002 cannot be begun") as caught:
        train(config(tmp_path, train={"steps": 2}, checkpoint={"every": 1}))
    assert caught.value.exit_code == 5
    assert [line["step"] for line in lines(tmp_path, "eval")] == [2]
    assert [line["step"] for line in events(tmp_path, "warning")] == [1, 2]
    assert events(tmp_path, "end") == []


def test_a_disk_that_is_full_at_the_end_is_the_checkpoints_error(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Fill(Callback):
        def on_step(self, run: Run, stats: StepStats) -> None:
            if stats.step == 2:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))

    try:
        with pytest.raises(CheckpointError, match=r"step-00000002 could not be saved: .*File too large"):
            train(config(tmp_path, train={"steps": 2}, track=[]), Fill())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_a_signal_whose_save_fails_claims_no_clean_save(tmp_path: Path) -> None:
    no_room(tmp_path)
    with pytest.raises(CheckpointError, match=r"SIGTERM after step 2, and nothing was saved: .* there is no older") as caught:
        train(config(tmp_path, train={"steps": 4}), Terminated(step=2))
    assert caught.value.exit_code == 5


def test_a_signal_whose_save_fails_names_the_newest_checkpoint(tmp_path: Path) -> None:
    class Fill(Callback):
        def on_step(self, run: Any, stats: StepStats) -> None:
            if stats.step == 3:
                checkpoints = tmp_path / "run" / "checkpoints"
                (checkpoints / "step-00000003.partial").write_text("a file where a folder must go")
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(
        CheckpointError, match=r"after step 3, and nothing was saved: .*; the newest checkpoint is .*step-00000002"
    ):
        train(config(tmp_path, train={"steps": 4}, checkpoint={"every": 2}), Fill())


def test_when_every_checkpoint_is_damaged_the_metrics_are_untouched(tmp_path: Path) -> None:
    run = config(tmp_path, train={"steps": 4, "max_steps": 3}, checkpoint={"every": 2})
    train(run)
    for step in (2, 3):
        os.truncate(tmp_path / "run" / "checkpoints" / f"step-0000000{step}" / "reference.npz", 10)
    before = content(tmp_path)
    with pytest.raises(CheckpointError, match=r"step-00000003.* has 10 bytes.*step-00000002.* has 10 bytes"):
        train(config(tmp_path, train={"steps": 4}))
    assert content(tmp_path) == before


def test_a_run_continued_from_further_back_does_not_take_an_old_end_for_its_own(tmp_path: Path) -> None:
    run = config(tmp_path, train={"steps": 2}, checkpoint={"every": 1})
    train(run)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000002")
    with pytest.raises(Interrupted):
        train(run, Terminated(step=2))
    diary = Diary()
    train(run, diary)
    assert diary.entries == ["start 2", "evaluated 2", "end 2"]


@pytest.mark.parametrize("again", [by_trainer, by_api])
def test_a_finished_run_whose_checkpoints_were_removed_is_not_trained_once_more(
    tmp_path: Path, again: Callable[[Any], Any]
) -> None:
    run = config(tmp_path, train={"steps": 2})
    train(run)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    before = content(tmp_path)
    assert again(run).idle
    assert content(tmp_path) == before


def test_resume_never_refuses_a_run_that_has_ended_without_a_checkpoint(tmp_path: Path) -> None:
    train(config(tmp_path, train={"steps": 1}, checkpoint={"at_end": False}))
    with pytest.raises(ConfigError, match="resume is never"):
        train(config(tmp_path, train={"steps": 1}, checkpoint={"resume": "never"}))
