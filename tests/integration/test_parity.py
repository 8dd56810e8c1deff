"""Loss and gradient of a global batch depend on neither packing, micro-batches, ranks nor the backend's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.parity import CONFIGS, compute, model_folder, reference
from support.ranks import run_ranks

WAYS: dict[str, dict[str, Any]] = {
    "unpacked": {"packing": "none", "capacity": 80},
    "packed": {"packing": "best_fit", "capacity": 80},
    "micro_tokens halved": {"packing": "best_fit", "capacity": 40},
    "activations recomputed": {"packing": "best_fit", "capacity": 80, "checkpointing": True},
}


@pytest.fixture(scope="module", params=list(CONFIGS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[str, Any]:
    return reference(model)


def assert_same(ours: dict[str, Any], plain: dict[str, Any]) -> None:
    assert ours["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert ours["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-5)
    assert set(ours["gradients"]) == set(plain["gradients"])
    for name, expected in plain["gradients"].items():
        distance = np.linalg.norm(ours["gradients"][name] - expected)
        assert distance <= 1e-5 * np.linalg.norm(expected), name


@pytest.mark.parametrize("way", list(WAYS))
def test_B53_B54_B59_one_process_equals_plain_transformers(model: Path, plain: dict[str, Any], way: str) -> None:
    assert_same(compute({"model": model, **WAYS[way]}), plain)


@pytest.mark.parametrize("way", ["micro_tokens halved", "activations recomputed"])
def test_B60_two_processes_equal_plain_transformers(model: Path, plain: dict[str, Any], way: str) -> None:
    for ours in run_ranks(2, compute, {"model": model, **WAYS[way]}):
        assert ours["world"] == 2
        assert_same(ours, plain)


def test_the_ways_really_differ(model: Path) -> None:
    counts = {way: compute({"model": model, **settings})["micro_batches"] for way, settings in WAYS.items()}
    assert counts["unpacked"] > counts["micro_tokens halved"] > counts["packed"]


def test_bfloat16_compute_stays_near_and_keeps_float32_weights(model: Path, plain: dict[str, Any]) -> None:
    ours = compute({"model": model, **WAYS["packed"], "compute_dtype": "bfloat16"})
    assert ours["loss"] == pytest.approx(plain["loss"], rel=2e-2)
    assert {str(gradient.dtype) for gradient in ours["gradients"].values()} == {"float32"}
