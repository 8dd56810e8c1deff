"""Tokens per second, MFU and peak memory of training on one GPU, beside a plain `transformers` loop; prints a table, writes JSON.

Models are random, of the shapes of Qwen3 0.6B and 1.7B, so that nothing is fetched. Both sides train the same token counts in
bfloat16: ours packs documents of mixed lengths into rows of `--tokens`; the plain loop pads the same documents in batches of the
same size, as most scripts do. MFU counts 6 FLOPs per parameter and token, and the attention that the documents need.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen3Config

from arrowtune.backends import open_backend
from arrowtune.backends.config import ModelConfig, OptimizerConfig, StrategyConfig
from arrowtune.types import Batch

RESULTS = Path(__file__).parents[1] / "results"
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1024},
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
}
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L4": 121e12, "4090": 165e12}
"""Dense bfloat16 FLOPs per second, from the makers' data sheets."""


def shape(name: str) -> Qwen3Config:
    """The configuration of a model."""
    common = {"vocab_size": 151_936, "num_key_value_heads": 2 if name == "tiny" else 8, "head_dim": 16 if name == "tiny" else 128}
    return Qwen3Config(**{**common, "tie_word_embeddings": True, "max_position_embeddings": 40_960, **SHAPES[name]})


def random_model(config: Qwen3Config, dtype: torch.dtype = torch.float32) -> Any:
    """A model of random weights."""
    make: Any = AutoModelForCausalLM.from_config
    return make(config, dtype=dtype)


def documents(tokens: int, vocabulary: int, seed: int) -> list[np.ndarray]:
    """Documents of log-normal length that fill a row of `tokens`."""
    rng = np.random.default_rng(seed)
    found: list[np.ndarray] = []
    left = tokens
    while left > 16:
        length = min(left, int(np.clip(rng.lognormal(6.2, 1.0), 16, tokens)))
        found.append(rng.integers(0, vocabulary, length))
        left -= length
    return found


def batch_of(parts: list[np.ndarray]) -> Batch:
    """The documents as one packed row; the second half of each is trained."""
    ids = np.concatenate(parts).astype(np.int64)
    targets = np.concatenate([np.append(part[1:], 0) for part in parts]).astype(np.int64)
    weights = np.concatenate(
        [(np.arange(len(part)) >= len(part) // 2) & (np.arange(len(part)) < len(part) - 1) for part in parts]
    )
    places = np.concatenate([np.arange(len(part)) for part in parts]).astype(np.int64)
    return Batch(ids, targets, weights.astype(np.float32), places, np.cumsum([0, *map(len, parts)]).astype(np.int32))


def flops(config: Qwen3Config, parameters: int, rows: list[list[np.ndarray]]) -> float:
    """Of forward and backward over the documents of a step."""
    lengths = np.array([len(part) for row in rows for part in row], np.float64)
    attention = 6 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * float((lengths**2).sum())
    return 6 * parameters * float(lengths.sum()) + attention


def timed(device: torch.device, steps: int, step: Callable[[int], object]) -> dict[str, float]:
    """Seconds of a step after two to warm up, and the peak memory."""
    for number in range(2):
        step(number)
    _wait(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    for number in range(2, 2 + steps):
        step(number)
    _wait(device)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return {"seconds_per_step": (time.perf_counter() - started) / steps, "peak_bytes": float(peak)}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def ours(config: Qwen3Config, rows: list[list[np.ndarray]], steps: int, folder: Path, device: torch.device) -> dict[str, float]:
    """The fsdp backend on packed rows."""
    config.save_pretrained(folder)
    backend = open_backend(ModelConfig(path=str(folder), init="random"), StrategyConfig(), OptimizerConfig(), seed=1)
    try:
        batches = [batch_of(row) for row in rows]
        weight = float(sum(batch.loss_weights.sum() for batch in batches))
        return timed(device, steps, lambda number: backend.train_step(batches, loss_weight=weight, lr=1e-5))
    finally:
        backend.close()


def plain(config: Qwen3Config, rows: list[list[np.ndarray]], steps: int, device: torch.device) -> dict[str, float]:
    """`transformers` and torch alone: padded batches, autocast, the same optimizer."""
    torch.manual_seed(1)
    model = random_model(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")

    def step(number: int) -> None:
        for row in rows:
            longest = max(map(len, row))
            ids = torch.zeros((len(row), longest), dtype=torch.int64)
            labels = torch.full((len(row), longest), -100, dtype=torch.int64)
            for k, part in enumerate(row):
                ids[k, : len(part)] = torch.from_numpy(part)
                labels[k, len(part) // 2 : len(part)] = torch.from_numpy(part[len(part) // 2 :])
            mask = (torch.arange(longest)[None] < torch.tensor([len(part) for part in row])[:, None]).long()
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(input_ids=ids.to(device), attention_mask=mask.to(device), labels=labels.to(device)).loss
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return timed(device, steps, step)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", nargs="+", default=["0.6B", "1.7B"], choices=list(SHAPES))
    options.add_argument("--tokens", type=int, default=8192, help="of a packed row")
    options.add_argument("--rows", type=int, default=2, help="packed rows of a step")
    options.add_argument("--steps", type=int, default=5)
    options.add_argument("--folder", type=Path, required=True, help="where configurations are written")
    chosen = options.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    card = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "cpu"
    top = next((value for name, value in PEAKS.items() if name in card), None)
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": card,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "models": {},
    }
    for name in chosen.models:
        config = shape(name)
        with torch.device("meta"):
            parameters = sum(p.numel() for p in random_model(config).parameters())
        rows = [documents(chosen.tokens, config.vocab_size, seed) for seed in range(chosen.rows)]
        count = sum(len(part) for row in rows for part in row)
        sides: dict[str, dict[str, float]] = {}
        for side in ("arrowtune", "plain"):
            try:
                if side == "arrowtune":
                    sides[side] = ours(config, rows, chosen.steps, chosen.folder / name, device)
                else:
                    sides[side] = plain(config, rows, chosen.steps, device)
            except Exception as error:  # noqa: BLE001 - the other side is still worth knowing
                result["models"].setdefault(name, {})[f"{side}_failed"] = f"{type(error).__name__}: {error}"[:300]
                continue
            seconds = sides[side]["seconds_per_step"]
            sides[side]["tokens_per_second"] = count / seconds
            if top:
                sides[side]["mfu"] = flops(config, parameters, rows) / seconds / top
            print(f"{name:6} {side:10} {count / seconds:12,.0f} tokens/s  {sides[side]['peak_bytes'] / 1e9:6.1f} GB", flush=True)
        ratio = sides["plain"]["seconds_per_step"] / sides["arrowtune"]["seconds_per_step"] if len(sides) == 2 else None
        result["models"][name] = {**result["models"].get(name, {}), **sides, "parameters": parameters, "ratio": ratio}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "gpu_train.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
