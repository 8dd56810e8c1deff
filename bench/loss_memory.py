"""Peak memory of the output layer with its loss: ours, and the plain one of `transformers`, each in a process of its own.

150,000 tokens of vocabulary, 576 wide, float32, forward and backward. Measured is what comes on top of the hidden states and
the weights, the gradient of the weights included. The gradients of both are held against float64.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.loss.loss_utils import ForCausalLMLoss

from arrowtune.backends.fsdp.linear_loss import linear_cross_entropy
from real_chats import ROOT

RESULTS = ROOT / "bench" / "results"
VOCABULARY, WIDTH = 150_000, 576


def ours(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean loss, as the trainer computes it."""
    return linear_cross_entropy(hidden, weight, None, targets, torch.ones(len(hidden))) / len(hidden)


def naive(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As a model's own forward does it, with labels."""
    logits = torch.nn.functional.linear(hidden, weight)[None]
    loss: torch.Tensor = ForCausalLMLoss(logits, labels=None, vocab_size=VOCABULARY, shift_labels=targets[None])
    return loss


WAYS: dict[str, Callable[..., torch.Tensor]] = {"ours": ours, "naive": naive}


def inputs(tokens: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, weights and targets; the same numbers in every dtype."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, WIDTH).to(dtype).requires_grad_()
    weight = (torch.randn(VOCABULARY, WIDTH) * 0.02).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(VOCABULARY, (tokens,))


def status(key: str) -> int:
    """Bytes, of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def peak(way: str, tokens: int) -> int:
    """Bytes on top of what there was; in a fresh process."""
    torch.autograd.backward(WAYS[way](*inputs(8)))  # threads and their buffers
    given = inputs(tokens)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    torch.autograd.backward(WAYS[way](*given))
    return status("VmHWM") - before


def peak_apart(way: str, tokens: int) -> int:
    """As `peak`."""
    command = [sys.executable, __file__, "--way", way, "--tokens", str(tokens)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def gradients(way: Callable[..., torch.Tensor], dtype: torch.dtype = torch.float32, tokens: int = 256) -> list[torch.Tensor]:
    """Of the hidden states and of the weights."""
    hidden, weight, targets = inputs(tokens, dtype)
    torch.autograd.backward(way(hidden, weight, targets))
    assert hidden.grad is not None
    assert weight.grad is not None
    return [hidden.grad, weight.grad]


def furthest(given: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """The largest difference, in parts of the largest entry."""
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in zip(given, right, strict=True))


def naive_in_double(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """What both are held against."""
    return torch.nn.functional.cross_entropy(hidden @ weight.T, targets)


def measure() -> dict[str, Any]:
    """All figures."""
    small, large = 4_096, 16_384
    peaks = {way: peak_apart(way, small) for way in WAYS}
    exact = gradients(naive_in_double, torch.float64)
    own, plain = gradients(ours), gradients(naive)
    return {
        "vocabulary": VOCABULARY,
        "width": WIDTH,
        "tokens": small,
        "ours_gb": peaks["ours"] / 1e9,
        "naive_gb": peaks["naive"] / 1e9,
        "part_of_naive": peaks["ours"] / peaks["naive"],
        "ours_gb_at_16384": peak_apart("ours", large) / 1e9,
        "gradients_from_naive": furthest(own, plain),
        "gradients_from_float64": furthest(own, exact),
        "naive_from_float64": furthest(plain, exact),
    }


def main() -> None:
    """Measure, print, write JSON; with `--way`, only what a fresh process is for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=list(WAYS))
    parser.add_argument("--tokens", type=int, default=0)
    given = parser.parse_args()
    if given.way:
        print(peak(given.way, given.tokens))
        return
    found = measure()
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "loss_memory.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
