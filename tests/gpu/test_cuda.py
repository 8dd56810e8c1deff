"""One CUDA device: the arithmetic is that of plain `transformers` on the CPU, and a run trains, stops and continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.parity import CONFIGS, compute, model_folder, reference
from support.run import config, lines, train

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


@pytest.mark.parametrize("packing", ["none", "best_fit"])
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_loss_and_gradient_are_those_of_the_cpu(tmp_path: Path, kind: str, packing: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    folder = model_folder(kind, tmp_path)
    plain = reference(folder)
    ours = compute({"model": folder, "packing": packing, "capacity": 80, "compute_dtype": "float32"})
    assert ours["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert ours["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-4)
    for name, expected in plain["gradients"].items():
        assert np.linalg.norm(ours["gradients"][name] - expected) <= 1e-4 * np.linalg.norm(expected), name


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_a_run_learns_stops_and_continues(tmp_path: Path, compute_dtype: str) -> None:
    sections: dict[str, Any] = {
        "strategy": {"compute_dtype": compute_dtype},
        "batch": {"examples": 16},
        "train": {"steps": 12},
        "optimizer": {"lr": 1e-3},
        "checkpoint": {"every": 4},
    }
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config(whole, **sections))
    train(config(parts, **{**sections, "train": {"steps": 12, "max_steps": 7}}))
    train(config(parts, **sections))
    expected, found = ([(line["loss"], line["batch_digest"]) for line in lines(folder, "train")] for folder in (whole, parts))
    assert [digest for _, digest in found] == [digest for _, digest in expected]
    tolerance = 1e-5 if compute_dtype == "float32" else 2e-2
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in expected], rel=tolerance)
    assert found[-1][0] < 0.8 * found[0][0]


def test_memory_is_bounded_by_the_micro_batch(tmp_path: Path) -> None:
    peaks = []
    for examples in (8, 64):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        train(config(tmp_path / str(examples), strategy={"name": "fsdp"}, batch={"examples": examples}, train={"steps": 2}))
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 1.1 * peaks[0]
