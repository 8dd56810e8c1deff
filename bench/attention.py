"""Attention of a packed row on a CPU: ours, 32 calls for its documents one by one, and one call with a mask over the row.

32 documents of 64 to 512 tokens, all lengths different, some 8,000 in all; the heads of SmolLM2-135M; forward and backward.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from arrowtune.backends.fsdp.attention import Documents, attend
from real_chats import ROOT

RESULTS = ROOT / "bench" / "results"
HEADS, SHARED, WIDTH = 9, 3, 64


def tensors(length: int) -> list[torch.Tensor]:
    """Query, key and value as a layer makes them: heads side by side within a token."""
    return [torch.randn(1, length, heads, WIDTH).transpose(1, 2).requires_grad_() for heads in (HEADS, SHARED, SHARED)]


def spent(ways: dict[str, Callable[[], None]], times: int) -> dict[str, float]:
    """Seconds of the fastest, the ways taken in turn."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(times + 1):
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            found[name].append(time.perf_counter() - started)
    return {name: min(seconds[1:]) for name, seconds in found.items()}


def main() -> None:
    """Measure, print, write JSON."""
    torch.manual_seed(0)
    lengths = np.random.default_rng(4).permutation(np.linspace(64, 448, 32).astype(int)).tolist()
    total = sum(lengths)
    ends = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32)
    row, layer = Documents(tuple(lengths), ends), torch.nn.Module()
    packed, separate = tensors(total), [tensors(length) for length in lengths]
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = (owner[:, None] == owner[None]) & torch.ones(total, total, dtype=torch.bool).tril()

    def ours() -> None:
        query, key, value = packed
        torch.autograd.backward(attend(layer, query, key, value, row)[0].sum())

    def one_by_one() -> None:
        for query, key, value in separate:
            output = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            torch.autograd.backward(output.transpose(1, 2).contiguous().sum())

    def masked() -> None:
        query, key, value = packed
        key, value = (tensor.repeat_interleave(HEADS // SHARED, 1) for tensor in (key, value))
        output = scaled_dot_product_attention(query, key, value, attn_mask=mask[None, None])
        torch.autograd.backward(output.transpose(1, 2).contiguous().sum())

    times = {**spent({"ours_s": ours, "one_by_one_s": one_by_one}, 15), **spent({"masked_row_s": masked}, 2)}
    found = {
        "documents": len(lengths),
        "tokens": total,
        **times,
        "of_one_by_one": times["ours_s"] / times["one_by_one_s"],
        "of_masked_row": times["ours_s"] / times["masked_row_s"],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "attention.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
