"""The output layer and the loss in one: the same numbers as torch's own, without the logits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from arrowtune.backends.fsdp.linear_loss import Logits, linear_cross_entropy

Inputs = dict[str, torch.Tensor]
VOCABULARY, WIDTH, POSITIONS = 301, 24, 50
ROW = 4 * VOCABULARY
KINDS = {"plain": Logits(), "scaled": Logits(scale=0.25), "capped": Logits(cap=3.0), "both": Logits(scale=2.0, cap=5.0)}


def inputs(*, bias: bool = True) -> Inputs:
    random = torch.Generator().manual_seed(3)
    found = {
        "hidden": torch.randn(POSITIONS, WIDTH, generator=random, dtype=torch.float64),
        "weight": torch.randn(VOCABULARY, WIDTH, generator=random, dtype=torch.float64),
    }
    return found | ({"bias": torch.randn(VOCABULARY, generator=random, dtype=torch.float64)} if bias else {})


def labels() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(4)
    weights = torch.rand(POSITIONS, generator=random)
    weights[::7] = 0.0
    return torch.randint(0, VOCABULARY, (POSITIONS,), generator=random), weights


def by_torch(logits: Logits, inputs: Inputs) -> torch.Tensor:
    targets, weights = labels()
    scores = linear(inputs["hidden"], inputs["weight"], inputs.get("bias")) * logits.scale
    if logits.cap is not None:
        scores = logits.cap * torch.tanh(scores / logits.cap)
    return (cross_entropy(scores, targets, reduction="none") * weights.to(scores.dtype)).sum()


def by_us(logits: Logits, inputs: Inputs, rows: int = 16) -> torch.Tensor:
    return linear_cross_entropy(inputs["hidden"], inputs["weight"], inputs.get("bias"), *labels(), logits, chunk_bytes=rows * ROW)


def differentiated(loss: Callable[[Inputs], torch.Tensor], values: Inputs, dtype: torch.dtype) -> tuple[float, Inputs]:
    leaves = {name: value.to(dtype, copy=True).requires_grad_() for name, value in values.items()}
    result = loss(leaves)
    (result / 3).backward()
    return result.item(), {name: leaf.grad.double() for name, leaf in leaves.items() if leaf.grad is not None}


def error(found: Inputs, expected: Inputs) -> float:
    assert found.keys() == expected.keys()
    return max(float((found[name] - expected[name]).abs().max() / expected[name].abs().max()) for name in expected)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("bias", [True, False])
def test_loss_and_gradients_are_exact(kind: str, bias: bool) -> None:
    logits = KINDS[kind]
    loss, gradients = differentiated(lambda leaves: by_us(logits, leaves), inputs(bias=bias), torch.float32)
    expected, exact = differentiated(lambda leaves: by_torch(logits, leaves), inputs(bias=bias), torch.float64)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert error(gradients, exact) < 1e-6


@pytest.mark.parametrize("rows", [1, 7, 50, 1000])
def test_the_size_of_a_chunk_does_not_matter(rows: int) -> None:
    logits = KINDS["both"]
    loss, gradients = differentiated(lambda leaves: by_us(logits, leaves, rows), inputs(), torch.float32)
    expected, exact = differentiated(lambda leaves: by_torch(logits, leaves), inputs(), torch.float64)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert error(gradients, exact) < 1e-6


def test_low_precision_adds_up_in_float32() -> None:
    rounded = {name: value.bfloat16().double() for name, value in inputs().items()}
    _, exact = differentiated(lambda leaves: by_torch(Logits(), leaves), rounded, torch.float64)
    _, ours = differentiated(lambda leaves: by_us(Logits(), leaves, 1), rounded, torch.bfloat16)
    _, torchs = differentiated(lambda leaves: by_torch(Logits(), leaves), rounded, torch.bfloat16)
    assert error(ours, exact) <= error(torchs, exact)


def test_only_what_is_trained_has_a_gradient() -> None:
    values = {name: value.float() for name, value in inputs().items()}
    values["weight"].requires_grad_()
    by_us(Logits(), values).backward()
    assert values["weight"].grad is not None
    assert values["hidden"].grad is None
    with torch.no_grad():
        assert not by_us(Logits(), values).requires_grad


def test_extreme_scores_stay_finite() -> None:
    values = {name: value * 1e4 for name, value in inputs().items()}
    loss, gradients = differentiated(lambda leaves: by_us(Logits(), leaves), values, torch.float32)
    assert torch.isfinite(torch.tensor(loss))
    assert all(bool(torch.isfinite(one).all()) for one in gradients.values())


def test_no_trained_position_has_no_gradient_but_takes_part() -> None:
    values = {name: value[:1] if name == "hidden" else value for name, value in inputs().items()}

    def nothing(leaves: Inputs) -> torch.Tensor:
        zero = torch.zeros(1)
        return linear_cross_entropy(leaves["hidden"], leaves["weight"], leaves["bias"], zero.long(), zero)

    loss, gradients = differentiated(nothing, copy.deepcopy(values), torch.float32)
    assert loss == 0
    assert all(float(gradient.abs().max()) == 0 for gradient in gradients.values())


def _model(kind: str, **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
    torch.manual_seed(5)
    config = AutoConfig.for_model(kind, **{**shape, **heads, **changes})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "phi3": {"partial_rotary_factor": 1.0},
    "phi": {"num_key_value_heads": 4},  # Its output layer has a bias.
    "gemma": {},
    "gemma2": {"final_logit_softcapping": 2.0},
    "gemma3_text": {"final_logit_softcapping": 2.0},
    "cohere": {"logit_scale": 0.0625},
    "granite": {"logits_scaling": 8.0},
    "olmo2": {},
    "smollm3": {},
    "gpt_neox": {},
    "stablelm": {},
    "starcoder2": {},
}


@pytest.mark.parametrize("kind", list(ARCHITECTURES))
def test_every_architecture_of_the_table_gives_its_own_loss_and_gradient(kind: str) -> None:
    import numpy as np

    from arrowtune.backends.fsdp.objective import Objective
    from arrowtune.plan.batch import make_batch
    from arrowtune.plan.order import Refs
    from support.parity import examples

    batch = make_batch([examples()], Refs(np.zeros(3, np.int32), np.arange(3)), np.arange(3))
    objective = Objective(_model(kind, **ARCHITECTURES[kind]), torch.device("cpu"))
    assert objective.fused is not None
    found = []
    for fused in (objective.fused, None):
        objective.fused = fused
        objective.zero_grad()
        loss = objective(batch)
        loss.backward()
        found.append(
            (loss.item(), {name: one.grad.double() for name, one in objective.named_parameters() if one.grad is not None})
        )
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert found[0][1].keys() == found[1][1].keys()
    whole = [torch.cat([one.ravel() for one in gradients.values()]) for _, gradients in found]
    assert float((whole[0] - whole[1]).norm() / whole[1].norm()) < 1e-6


def test_a_model_that_is_not_what_it_says_uses_its_own_forward() -> None:
    from arrowtune.backends.fsdp.objective import Objective
    from arrowtune.backends.fsdp.probe import fused_loss_differs

    model = _model("llama")
    objective = Objective(model, torch.device("cpu"))
    assert not fused_loss_differs(objective, VOCABULARY)
    forward = model.forward

    def louder(*args: Any, **options: Any) -> Any:
        output = forward(*args, **options)
        output.logits = output.logits * 2
        return output

    model.forward = louder
    assert fused_loss_differs(objective, VOCABULARY)


def test_an_output_layer_that_is_wrapped_is_called() -> None:
    from arrowtune.backends.fsdp.heads import logits_of

    class Wrapped(torch.nn.Linear):
        pass

    model = _model("llama")
    model.set_output_embeddings(Wrapped(32, VOCABULARY, bias=False))
    assert logits_of(model) is None
    assert logits_of(_model("gpt2", n_embd=32, n_layer=1, n_head=2)) is None
