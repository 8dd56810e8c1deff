"""Attention over packed rows is that of every document alone: logits and gradients, in the shapes that models have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from arrowtune.backends.fsdp import attention
from arrowtune.backends.fsdp.attention import NAME, Documents, UnknownAttention, attend, use_documents
from arrowtune.backends.fsdp.objective import Objective
from arrowtune.backends.fsdp.probe import attention_differs, documents_leak
from arrowtune.types import Batch
from support.parity import SHAPE

CPU = torch.device("cpu")
LENGTHS = (5, 12, 12, 1, 30)

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 8},
    "cohere2": {"sliding_window": 8},
    "gemma2": {"head_dim": 16, "sliding_window": 8, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 10},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8},
    "gpt_oss": {"head_dim": 16, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 4},
    "deepseek_v3": {
        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1,
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
        "moe_intermediate_size": 16,
    },
}  # fmt: skip
"""Grouped queries, windows, soft caps, sinks, a scale of one's own, values narrower than keys."""


def random_model(kind: str, **more: Any) -> PreTrainedModel:
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **{**SHAPE, **KINDS.get(kind, {}), **more})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def packed(lengths: tuple[int, ...]) -> Batch:
    total = sum(lengths)
    ids = np.random.default_rng(0).integers(0, 300, total)
    return Batch(
        input_ids=ids,
        targets=np.roll(ids, -1),
        loss_weights=np.ones(total, np.float32),
        position_ids=np.concatenate([np.arange(length) for length in lengths]),
        cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
    )


def gradients(model: PreTrainedModel, loss: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_packed_row_has_the_logits_and_gradients_of_its_documents(kind: str) -> None:
    model, batch = random_model(kind), packed(LENGTHS)
    ids = torch.from_numpy(batch.input_ids)
    alone = [model(input_ids=document[None], use_cache=False).logits[0] for document in ids.split(LENGTHS)]
    right = torch.cat(alone)
    right_gradients = gradients(model, right.square().mean())
    assert use_documents(model)
    logits = Objective(model, CPU)(batch, logits=True)
    assert float((logits - right).detach().abs().max()) <= 1e-5 * float(right.detach().abs().max())
    assert float((gradients(model, logits.square().mean()) - right_gradients).abs().max()) <= 1e-5 * float(
        right_gradients.abs().max()
    )
    assert not attention_differs(Objective(model, CPU), 300)
    assert not documents_leak(Objective(model, CPU), 300)


@pytest.mark.parametrize(
    ("kind", "more"), [("llama4_text", {"num_local_experts": 2, "attention_chunk_size": 8, "head_dim": 16}), ("bloom", {})]
)
def test_a_model_with_other_masks_keeps_its_own_attention(kind: str, more: dict[str, Any]) -> None:
    model = random_model(kind, **more)
    own = model.config._attn_implementation
    assert not use_documents(model)
    assert model.config._attn_implementation == own


def test_long_documents_and_windows_are_computed_in_blocks() -> None:
    torch.manual_seed(0)
    length, window = 700, 90
    query = torch.randn(1, 4, length, 16)
    key, value = torch.randn(1, 2, length, 16), torch.randn(1, 2, length, 16)
    sinks = torch.randn(4)
    row = Documents((length,), torch.tensor([0, length]), window)
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]
    seen = (distance >= 0) & (distance < window)
    for softcap, s_aux in ((None, None), (3.0, None), (None, sinks), (3.0, sinks)):
        output, _ = attend(torch.nn.Module(), query, key, value, row, softcap=softcap, s_aux=s_aux)
        scores = query @ key.repeat_interleave(2, 1).transpose(2, 3) / 4
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        weights = scores.masked_fill(~seen, -torch.inf).exp()
        total = weights.sum(-1, keepdim=True) + (0 if s_aux is None else s_aux.exp()[:, None, None])
        right = (weights / total) @ value.repeat_interleave(2, 1)
        torch.testing.assert_close(output[0].transpose(0, 1), right[0], atol=2e-6, rtol=1e-5)


def test_what_it_does_not_know_it_refuses() -> None:
    tensor = torch.zeros(1, 2, 4, 8)
    row = Documents((4,), torch.tensor([0, 4]))
    with pytest.raises(UnknownAttention, match="position_bias"):
        attend(torch.nn.Module(), tensor, tensor, tensor, row, position_bias=torch.zeros(1))
    encoder = torch.nn.Module()
    encoder.is_causal = False  # type: ignore[assignment]
    with pytest.raises(UnknownAttention):
        attend(encoder, tensor, tensor, tensor, row)


def test_a_model_whose_attention_is_refused_goes_back_to_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from arrowtune.backends import open_backend
    from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnknownAttention("a bias")

    monkeypatch.setitem(attention.AttentionInterface._global_mapping, NAME, refuse)
    backend: Any = open_backend(ModelConfig(), StrategyConfig(), OptimizerConfig(), seed=0)
    try:
        (note,) = backend.notes
        assert "attention" in note
        assert backend.why_not_packed == ""
        batch = packed(LENGTHS)
        first, second = (backend.train_step([batch], loss_weight=60.0, lr=1e-2).loss_sum for _ in range(2))
        assert second < first
    finally:
        backend.close()
