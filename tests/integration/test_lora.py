"""Adapters: what is trained, what is saved, and what an export of either kind computes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrowtune.errors import ConfigError
from support.parity import model_folder
from support.ranks import run_ranks
from support.training import logits_of, opened, plan, train, weights

# peft asks transformers by a name that is on its way out.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

IDS = [5, 17, 250, 3, 99, 8]
LORA = {"rank": 4, "alpha": 8.0}


def trained(model: Path, lora: dict[str, Any] = LORA) -> dict[str, Any]:
    """Losses of four steps, all weights afterwards, and the logits."""
    backend = opened(model, lora=lora)
    losses = train(backend, 0, 4)
    found = {"losses": losses, "weights": weights(backend), "logits": logits_of(backend, IDS).numpy()}
    backend.close()
    return found


def by_peft_alone(model: Path) -> list[float]:
    """The same steps by transformers, peft and torch: one example at a time, no code of ours but the plan."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    own = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(own, lr=3e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    steps, losses = plan(), []
    for step in range(4):
        weight, total = steps.totals(step).loss_weight, 0.0
        for batch in steps.batches(step, 0, 1):
            ends = batch.cu_seqlens.tolist()
            for start, stop in pairwise(ends):
                logits = adapted(input_ids=torch.from_numpy(batch.input_ids[start:stop])[None], use_cache=False).logits[0]
                each = torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.targets[start:stop]), reduction="none")
                loss = (each * torch.from_numpy(batch.loss_weights[start:stop])).sum() / weight
                loss.backward()
                total += loss.item()
        torch.nn.utils.clip_grad_norm_(own, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder("qwen3", tmp_path_factory.mktemp("lora") / "base")


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[str, Any]:
    return trained(model)


def test_steps_are_those_of_peft(model: Path, alone: dict[str, Any]) -> None:
    np.testing.assert_allclose(alone["losses"], by_peft_alone(model), rtol=1e-5)


def test_two_ranks_train_the_same(model: Path, alone: dict[str, Any]) -> None:
    for rank in run_ranks(2, trained, model):
        np.testing.assert_allclose(rank["losses"], alone["losses"], rtol=1e-5)
        np.testing.assert_allclose(rank["logits"], alone["logits"], atol=1e-5)


def test_the_first_step_is_the_models_and_its_weights_stay(model: Path, alone: dict[str, Any]) -> None:
    backend = opened(model)
    before = weights(backend)
    first = train(backend, 0, 1)
    backend.close()
    assert alone["losses"][0] == pytest.approx(first[0], rel=1e-6)
    after = {name.replace(".base_layer", ""): tensor for name, tensor in alone["weights"].items() if ".lora_" not in name}
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        np.testing.assert_array_equal(after[name], tensor)
    assert all(tensor.any() for name, tensor in alone["weights"].items() if ".lora_B" in name)
    assert not any("lm_head" in name for name in alone["weights"] if ".lora_" in name)


def test_a_checkpoint_holds_adapters_alone_and_continues_exactly(model: Path, tmp_path: Path) -> None:
    from torch.distributed.checkpoint import FileSystemReader

    backend = opened(model, lora=LORA)
    train(backend, 0, 2)
    (tmp_path / "state").mkdir()
    backend.save(tmp_path / "state")
    right = train(backend, 2, 4)
    backend.close()
    saved = FileSystemReader(tmp_path / "state").read_metadata().state_dict_metadata
    assert len(saved) > 50
    assert [name for name in saved if ".lora_" not in name and not name.startswith("optimizer.param_groups.0.")] == []
    backend = opened(model, lora=LORA)
    backend.load(tmp_path / "state")
    assert train(backend, 2, 4) == right
    backend.close()


@pytest.mark.parametrize("merge", [True, False])
def test_an_export_computes_what_was_trained(model: Path, tmp_path: Path, merge: bool) -> None:
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    backend = opened(model, lora=LORA)
    train(backend, 0, 4)
    right = logits_of(backend, IDS).numpy()
    backend.export(tmp_path / "out", "auto", merge_lora=merge)
    backend.close()
    assert (tmp_path / "out" / "adapter_config.json").exists() is not merge
    assert (tmp_path / "out" / "model.safetensors").exists() is merge
    load: Any = AutoModelForCausalLM if merge else AutoPeftModelForCausalLM
    loaded = load.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        np.testing.assert_allclose(loaded(input_ids=torch.tensor([IDS])).logits[0].numpy(), right, atol=1e-5)


def test_weights_in_half_precision_train_adapters_in_full(model: Path) -> None:
    backend = opened(model, lora=LORA, dtype="bfloat16")
    dtypes = {(".lora_" in name, str(parameter.dtype)) for name, parameter in backend.model.named_parameters()}
    losses = train(backend, 0, 3)
    backend.close()
    assert dtypes == {(False, "torch.bfloat16"), (True, "torch.float32")}
    assert losses[2] < losses[0]


def test_layers_by_name(model: Path) -> None:
    named = trained(model, {**LORA, "targets": ["q_proj", "v_proj"]})["weights"]
    assert {name.split(".")[-4] for name in named if ".lora_" in name} == {"q_proj", "v_proj"}


@pytest.mark.parametrize(("target", "said"), [("q_prj", "is not there"), ("embed_tokens", "is no linear layer")])
def test_a_name_that_fits_nothing_is_one_sentence(model: Path, target: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        opened(model, lora={**LORA, "targets": [target]})
    assert "q_proj" in str(caught.value.hint)
