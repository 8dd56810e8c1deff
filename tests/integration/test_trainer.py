"""The trainer around the reference backend: when things happen, what is told, what a stop leaves behind."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrowtune import Callback, CheckpointError, ConfigError, SFTConfig, SFTTrainer
from arrowtune.errors import NonFiniteLoss
from arrowtune.plan.packing import pack
from arrowtune.types import IntArray, StepStats
from support.run import Diary, config, events, lines, train


def test_everything_happens_in_order_and_once(tmp_path: Path) -> None:
    diary = Diary()
    run = config(tmp_path, train={"steps": 5}, eval={"every": 2, "at_start": True}, checkpoint={"every": 2})
    train(run, diary)
    assert diary.entries == [
        "start 0", "evaluated 0", "step 1", "step 2", "evaluated 2", "saved step-00000002", "step 3", "step 4", "evaluated 4",
        "saved step-00000004", "step 5", "saved step-00000005", "evaluated 5", "end 5",
    ]  # fmt: skip


def test_a_due_evaluation_of_the_last_step_is_not_done_twice(tmp_path: Path) -> None:
    diary = Diary()
    train(config(tmp_path, train={"steps": 2}, eval={"every": 2}, checkpoint={"every": 2}), diary)
    assert diary.entries == ["start 0", "step 1", "step 2", "saved step-00000002", "evaluated 2", "end 2"]


def test_the_result_and_the_metrics_say_the_same(tmp_path: Path) -> None:
    result = train(config(tmp_path, train={"steps": 6}, eval={"at_start": True}))
    steps, evals = lines(tmp_path, "train"), lines(tmp_path, "eval")
    assert (result.first_loss, result.last_loss) == (steps[0]["loss"], steps[-1]["loss"])
    assert result.last_loss is not None
    assert result.first_loss is not None
    assert result.last_loss < result.first_loss
    assert result.progress.tokens == sum(line["tokens"] for line in steps)
    assert result.progress.trained_tokens == sum(line["trained_tokens"] for line in steps)
    assert result.evals == {"held out": [(line["step"], line["loss"]) for line in evals]}
    assert result.finished
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / "step-00000006"


def test_every_step_is_packed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []

    def counted(lengths: IntArray, capacity: int, method: str) -> IntArray:
        packed.append(len(lengths))
        return pack(lengths, capacity, method)

    with SFTTrainer(config(tmp_path, train={"steps": 5})) as trainer:
        monkeypatch.setattr("arrowtune.plan.plan.pack", counted)
        trainer.train()
        steps = lines(tmp_path, "train")
        assert packed == [line["examples"] for line in steps] == [64] * 5
        totals = [trainer.rank.plan.totals(step) for step in range(5)]
    told = ("tokens", "trained_tokens", "loss_weight", "padding", "per_source")
    assert [[line[name] for name in told] for line in steps] == [[getattr(one, name) for name in told] for one in totals]


def test_metrics_hold_the_contract(tmp_path: Path) -> None:
    train(config(tmp_path, train={"steps": 3}, eval={"at_start": True}))
    told = lines(tmp_path)
    assert all({"kind", "step", "time"} <= set(line) for line in told)
    needed = {
        "loss", "lr", "grad_norm", "tokens", "trained_tokens", "examples", "padding", "seconds", "tokens_per_second",
        "batch_digest", "loss_weight", "epoch", "per_source",
    }  # fmt: skip
    for line in lines(tmp_path, "train"):
        assert needed <= set(line)
        assert line["examples"] == 64 == sum(line["per_source"].values())
    for line in lines(tmp_path, "eval"):
        assert {"name", "loss", "trained_tokens"} <= set(line)


def test_planned_steps_are_run_steps_and_the_tail_is_trained(tmp_path: Path) -> None:
    result = train(config(tmp_path, train={"epochs": 2}, batch={"examples": 100}))
    steps = lines(tmp_path, "train")
    rows = sum(line["examples"] for line in steps)
    stored = 134 + 307
    assert result.total_steps == len(steps) == 2 * math.ceil(stored / 100)
    assert rows == 2 * stored
    assert steps[-1]["examples"] == stored % 100
    assert steps[-1]["epoch"] == 2.0


def test_a_callback_can_stop_and_the_run_continues_from_there(tmp_path: Path) -> None:
    run = config(tmp_path, train={"steps": 6})
    stopped = train(run, Diary(stop_at=2))
    assert (stopped.progress.step, stopped.finished) == (2, False)
    diary = Diary()
    continued = train(run, diary)
    assert diary.entries[:2] == ["start 2", "step 3"]
    assert (continued.started_at, continued.progress.step) == (2, 6)
    assert [line["step"] for line in lines(tmp_path, "train")] == [1, 2, 3, 4, 5, 6]


def test_a_stopped_run_equals_an_unbroken_one_bit_for_bit(tmp_path: Path) -> None:
    train(config(tmp_path / "a", train={"steps": 8}))
    train(config(tmp_path / "b", train={"steps": 8, "max_steps": 3}))
    train(config(tmp_path / "b", train={"steps": 8}))
    keys = ("step", "loss", "grad_norm", "lr", "batch_digest", "loss_weight", "tokens")
    assert [[line[key] for key in keys] for line in lines(tmp_path / "a", "train")] == [
        [line[key] for key in keys] for line in lines(tmp_path / "b", "train")
    ]


def test_more_steps_continue_a_finished_run_with_a_new_schedule(tmp_path: Path) -> None:
    train(config(tmp_path, train={"steps": 3}))
    longer = train(config(tmp_path, train={"steps": 6}))
    assert (longer.started_at, longer.progress.step) == (3, 6)
    digests = [line["batch_digest"] for line in lines(tmp_path, "train")]
    assert len(set(digests)) == 6


def test_more_steps_are_told_with_both_numbers(tmp_path: Path) -> None:
    train(config(tmp_path, train={"steps": 3}))
    train(config(tmp_path, train={"steps": 6}))
    (warning,) = events(tmp_path, "warning")
    assert "had 3 steps and now has 6" in warning["message"]


def test_a_stop_where_something_is_due_does_it_once(tmp_path: Path) -> None:
    diary = Diary(stop_at=2)
    train(config(tmp_path, train={"steps": 6}, eval={"every": 2}, checkpoint={"every": 2}), diary)
    assert diary.entries == ["start 0", "step 1", "step 2", "evaluated 2", "saved step-00000002", "end 2"]
    assert len(lines(tmp_path, "eval")) == len(events(tmp_path, "checkpoint")) == 1


def test_packing_changes_neither_the_examples_nor_the_loss(tmp_path: Path) -> None:
    told = []
    for packing in ("best_fit", "first_fit", "none"):
        train(config(tmp_path / packing, train={"steps": 3}, batch={"examples": 64, "packing": packing}))
        told.append(
            [(line["batch_digest"], pytest.approx(line["loss"], rel=1e-9)) for line in lines(tmp_path / packing, "train")]
        )
    assert told[0] == told[1] == told[2]


def test_a_rate_of_zero_changes_nothing(tmp_path: Path) -> None:
    train(config(tmp_path, train={"epochs": 2}, optimizer={"lr": 0.0}, eval={"at_start": True}))
    first, last = (line["loss"] for line in lines(tmp_path, "eval"))
    assert first == last


def test_resume_never_refuses_a_folder_with_a_checkpoint(tmp_path: Path) -> None:
    train(config(tmp_path, train={"steps": 1}))
    with pytest.raises(ConfigError, match="resume is never"):
        train(config(tmp_path, train={"steps": 2}, checkpoint={"resume": "never"}))


def test_another_seed_is_another_plan(tmp_path: Path) -> None:
    train(config(tmp_path, train={"steps": 1}))
    with pytest.raises(CheckpointError, match="seed was 42 and is now 7"):
        train(config(tmp_path, train={"steps": 2, "seed": 7}))


def test_resolved_json_has_every_derived_number_with_its_reason(tmp_path: Path) -> None:
    train(config(tmp_path, train={"epochs": 1}))
    resolved = json.loads((tmp_path / "run" / "resolved.json").read_text())
    assert resolved["derived"]["train.steps"]["value"] == 7
    assert "rounded up" in resolved["derived"]["train.steps"]["because"]
    assert SFTConfig.parse(resolved["config"]) == config(tmp_path, train={"epochs": 1})


def test_those_who_own_their_loop_get_every_step(tmp_path: Path) -> None:
    with SFTTrainer(config(tmp_path, train={"steps": 4})) as trainer:
        seen = [stats.step for stats in trainer.steps()]
        assert trainer.progress.step == 4
        (measured,) = trainer.evaluate()
    assert seen == [1, 2, 3, 4]
    assert measured.loss == lines(tmp_path, "eval")[-1]["loss"]
    assert (tmp_path / "run" / "checkpoints" / "step-00000004" / "complete.json").exists()


def test_a_damaged_newest_checkpoint_is_passed_over_and_told(tmp_path: Path) -> None:
    run = config(tmp_path, train={"steps": 4}, checkpoint={"every": 2})
    train(run)
    os.truncate(tmp_path / "run" / "checkpoints" / "step-00000004" / "reference.npz", 10)
    continued = train(run)
    assert (continued.started_at, continued.progress.step) == (2, 4)
    (warning,) = events(tmp_path, "warning")
    assert "step-00000004/reference.npz has 10 bytes" in warning["message"]


def test_a_loss_that_is_no_number_names_the_step_and_keeps_what_was_saved(tmp_path: Path) -> None:
    class Poison(Callback):
        def on_step(self, run: Any, stats: StepStats) -> None:
            if stats.step == 2:
                run.rank.backend.model.inputs[:] = np.nan

    rows = r"its rows are (tasks: tasks.parquet row \d+; |completions: completions.jsonl.zst:\d+; ){5}and 59 more"
    with pytest.raises(NonFiniteLoss, match=rf"step 3 \(batch \w+, 64 examples\): .*{rows}"):
        train(config(tmp_path, train={"steps": 4}, checkpoint={"every": 1}), Poison())
    assert [line["step"] for line in lines(tmp_path, "train")] == [1, 2]
    assert (tmp_path / "run" / "checkpoints" / "step-00000001" / "complete.json").exists()
