"""The fsdp backend beside plain torch: updates, checkpoints on any number of ranks, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from arrowtune.backends import open_backend
from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.errors import BackendError, CheckpointError, ConfigError, NonFiniteLoss
from arrowtune.types import Batch
from support.parity import examples, model_folder
from support.ranks import run_ranks
from support.training import (
    LR,
    OPTIMIZER,
    go_on,
    opened,
    plan,
    save_and_tell,
    save_with_a_file_that_vanishes,
    save_with_a_full_disk,
    start,
    train,
    weights,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder("llama", tmp_path_factory.mktemp("llama"))


def plain_training(folder: Path, steps: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """The same steps by transformers and torch alone, one example at a time."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    matrices = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in network.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": OPTIMIZER.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=LR, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps)
    store, losses = examples(12), []
    for step in range(steps):
        total, weight = torch.zeros(()), 0.0
        for row in plan().refs(step).rows:
            tokens = torch.tensor(store.input_ids[row], dtype=torch.int64)
            token_weights = torch.tensor(store.loss_weights[row][1:], dtype=torch.float32)
            logits = network(input_ids=tokens[None]).logits[0, :-1]
            total = total + (torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none") * token_weights).sum()
            weight += float(token_weights.sum())
        (total / weight).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), OPTIMIZER.max_grad_norm)
        adam.step()
        adam.zero_grad()
        losses.append(total.item() / weight)
    return losses, {name: parameter.detach().numpy() for name, parameter in network.named_parameters()}


def bits(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def test_updates_equal_plain_torch_clipped_and_decayed(model: Path) -> None:
    backend = opened(model)
    losses = train(backend, 0, 4)
    expected, trained = plain_training(model, 4)
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, array in weights(backend).items():
        np.testing.assert_allclose(array, trained[name], atol=LR * 1e-2, err_msg=name)
    backend.close()


def test_a_rate_of_zero_leaves_every_bit(model: Path) -> None:
    backend = opened(model)
    for parameter in backend.model.parameters():
        parameter.detach().to_local().view(-1)[:4] = -0.0
    before = bits(weights(backend))
    train(backend, 0, 3, lr=0.0)
    assert bits(weights(backend)) == before
    backend.close()


def test_a_loss_that_is_no_number_touches_nothing(model: Path) -> None:
    backend = opened(model)
    head = backend.model.lm_head.weight.detach().to_local()
    kept = float(head[0, 0])
    head[0, 0] = float("nan")
    before = bits(weights(backend))
    with pytest.raises(NonFiniteLoss, match="nan"):
        train(backend, 0, 1)
    assert bits(weights(backend)) == before
    head[0, 0] = kept
    assert train(backend, 0, 1) == pytest.approx(plain_training(model, 1)[0], rel=1e-5)
    backend.close()


def test_B60_a_rank_without_a_trained_token_computes_and_adds_nothing(model: Path) -> None:
    ours = run_ranks(2, lone_example, model)
    assert ours[0] == ours[1] == pytest.approx(lone_example(model), rel=1e-5)


def lone_example(folder: Path) -> tuple[float, float]:
    """Loss sum and gradient norm of a batch whose tokens all go to rank 0; the others have context alone."""
    backend = opened(folder)
    ids = np.arange(1, 9) + 100 * backend.rank
    trained = np.array([0, 0, 1, 1, 0, 1, 1, 0], np.float32) * (backend.rank == 0)
    batch = Batch(ids, np.roll(ids, -1), trained, np.arange(8), np.array([0, 8], np.int32))
    result = backend.train_step([batch], loss_weight=4.0, lr=LR)
    backend.close()
    return result.loss_sum, result.grad_norm


@pytest.mark.parametrize(("saved_on", "loaded_on"), [(2, 1), (1, 2)])
def test_B68_a_checkpoint_continues_on_another_number_of_ranks(
    model: Path, tmp_path: Path, saved_on: int, loaded_on: int
) -> None:
    unbroken = run_ranks(saved_on, start, model, tmp_path / "saved")[0]
    continued = run_ranks(loaded_on, go_on, model, tmp_path / "saved")[0]
    assert continued == pytest.approx(unbroken[2:], rel=1e-6)


def test_random_weights_are_the_same_on_every_number_of_ranks(tmp_path: Path) -> None:
    losses = [run_ranks(ranks, start, "tiny", tmp_path / str(ranks))[0][0] for ranks in (1, 2)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_dropout_continues_as_if_nothing_had_happened(model: Path, tmp_path: Path) -> None:
    backend = opened(model, config={"attention_dropout": 0.3})
    train(backend, 0, 2)
    (tmp_path / "saved").mkdir()
    backend.save(tmp_path / "saved")
    unbroken = train(backend, 2, 4)
    backend.close()
    other = opened(model, config={"attention_dropout": 0.3})
    other.load(tmp_path / "saved")
    assert train(other, 2, 4) == unbroken
    other.close()
    assert go_on(model, tmp_path / "saved") != pytest.approx(unbroken, rel=1e-3)


@pytest.mark.parametrize(("ranks", "full_on"), [(1, 0), (2, 1)])
def test_B71_a_full_disk_costs_the_checkpoint_and_nothing_else(model: Path, tmp_path: Path, ranks: int, full_on: int) -> None:
    for message, left, passed_over in run_ranks(ranks, save_with_a_full_disk, model, tmp_path / "saved", full_on):
        assert "step-00000002 could not be saved" in message
        assert "File too large" in message
        assert left == ["step-00000001"]
        assert passed_over == []


def test_every_rank_digests_the_files_that_it_wrote(model: Path, tmp_path: Path) -> None:
    first, second = run_ranks(2, save_and_tell, model, tmp_path)
    assert sorted(first) == [".metadata", "__0_0.distcp", "random-0.safetensors"]
    assert sorted(second) == ["__1_0.distcp", "random-1.safetensors"]
    folder = tmp_path / "step-00000001"
    files = json.loads((folder / "complete.json").read_text())["files"]
    assert {entry["name"] for entry in files} == {path.name for path in folder.iterdir()} - {"complete.json"}
    for entry in files:
        data = (folder / entry["name"]).read_bytes()
        assert (entry["bytes"], entry["xxh3"]) == (len(data), xxhash.xxh3_128_hexdigest(data))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_digest_its_file_fails_all_and_leaves_no_checkpoint(tmp_path: Path, rank: int) -> None:
    told = run_ranks(2, save_with_a_file_that_vanishes, tmp_path, rank)
    assert told[0] == told[1] == (f"{tmp_path / 'step-00000001'} could not be saved: No such file or directory", [])


def test_a_checkpoint_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    start(model, tmp_path / "saved")
    other = opened(model, init="random", config={"num_hidden_layers": 3})
    with pytest.raises(CheckpointError, match="does not fit the model") as caught:
        other.load(tmp_path / "saved")
    assert "\n" not in caught.value.message
    other.close()


def test_a_token_beyond_the_vocabulary_is_named(model: Path) -> None:
    backend = opened(model)
    ids = np.array([1, 300, 2])
    batch = Batch(ids, np.zeros(3, np.int64), np.ones(3, np.float32), np.arange(3), np.array([0, 3], np.int32))
    with pytest.raises(BackendError, match="token 300 of the data is beyond the model's vocabulary of 300"):
        backend.eval_loss([batch])
    backend.close()


def no_such_setting(folder: Path) -> dict[str, Any]:
    return {"config": {"num_hiden_layers": 2}}


def half_of_it(folder: Path) -> dict[str, Any]:
    return {"config": {"num_hidden_layers": 3}}


def torn_weights(folder: Path) -> dict[str, Any]:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    return {}


def no_weights(folder: Path) -> dict[str, Any]:
    (folder / "model.safetensors").unlink()
    return {}


def unknown_architecture(folder: Path) -> dict[str, Any]:
    (folder / "config.json").write_text('{"model_type": "no-such-model"}')
    return {}


def no_language_model(folder: Path) -> dict[str, Any]:
    (folder / "config.json").write_text('{"model_type": "vit"}')
    return {}


@pytest.mark.parametrize(
    ("spoil", "kind", "says"),
    [
        (no_such_setting, ConfigError, "no such setting"),
        (half_of_it, BackendError, "lack model.layers.2."),
        (torn_weights, BackendError, "cannot be loaded"),
        (no_weights, BackendError, "cannot be loaded"),
        (unknown_architecture, ConfigError, "no-such-model"),
        (no_language_model, BackendError, "ViT"),
    ],
)
def test_a_model_that_cannot_be_trained_is_one_sentence(tmp_path: Path, spoil: Any, kind: type[Exception], says: str) -> None:
    settings = spoil(model_folder("llama", tmp_path))
    with pytest.raises(kind, match=says) as caught:
        open_backend(ModelConfig(path=str(tmp_path), **settings), StrategyConfig(), OptimizerConfig(), seed=0)
    assert "\n" not in str(caught.value)
    opened("tiny").close()  # The failed one has left the process group.
