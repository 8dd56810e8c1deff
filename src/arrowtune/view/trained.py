"""How a training run, an evaluation or an export ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from arrowtune.types import EvalStats, Progress
from arrowtune.view.text import count, fields, loss, table, visible


class Trained(Protocol):
    """What a finished call of `train` knows."""

    @property
    def progress(self) -> Progress: ...
    @property
    def started_at(self) -> int: ...
    @property
    def total_steps(self) -> int: ...
    @property
    def first_loss(self) -> float | None: ...
    @property
    def last_loss(self) -> float | None: ...
    @property
    def evals(self) -> Mapping[str, Sequence[tuple[int, float]]]: ...
    @property
    def checkpoint(self) -> Path | None: ...
    @property
    def export(self) -> Path | None: ...
    @property
    def tokens_per_second(self) -> float: ...
    @property
    def idle(self) -> bool: ...


def trained_text(result: Trained) -> str:
    """A summary: steps, loss, evaluation, speed, and where the results are."""
    progress = result.progress
    pairs = [("steps", _steps(result))]
    if result.last_loss is not None:
        pairs.append(("loss", f"{loss(result.first_loss)} -> {loss(result.last_loss)}"))
    pairs += [(f"eval {visible(name)}", _course(losses)) for name, losses in result.evals.items()]
    pairs.append(("tokens", f"{count(progress.tokens)}, of which {count(progress.trained_tokens)} trained"))
    if result.tokens_per_second:
        pairs.append(("speed", f"{count(result.tokens_per_second)} tokens/s"))
    places = (("checkpoint", result.checkpoint), ("export", result.export))
    return fields(pairs + [(name, str(path)) for name, path in places if path is not None])


def trained_json(result: Trained) -> dict[str, Any]:
    """The summary for machines."""
    return {
        "step": result.progress.step,
        "total_steps": result.total_steps,
        "started_at": result.started_at,
        "tokens": result.progress.tokens,
        "trained_tokens": result.progress.trained_tokens,
        "first_loss": result.first_loss,
        "last_loss": result.last_loss,
        "evals": {name: [{"step": step, "loss": value} for step, value in losses] for name, losses in result.evals.items()},
        "tokens_per_second": result.tokens_per_second,
        "checkpoint": str(result.checkpoint) if result.checkpoint else None,
        "export": str(result.export) if result.export else None,
    }


def evaluated_text(evals: Sequence[EvalStats]) -> str:
    """One row per evaluation set."""
    rows = [(visible(stats.name), loss(stats.loss), _perplexity(stats.loss), count(stats.trained_tokens)) for stats in evals]
    return table(("set", "loss", "perplexity", "trained tokens"), rows)


def evaluated_json(evals: Sequence[EvalStats]) -> dict[str, Any]:
    """The losses for machines."""
    return {"evals": [{"name": s.name, "step": s.step, "loss": s.loss, "trained_tokens": s.trained_tokens} for s in evals]}


def _steps(result: Trained) -> str:
    step, total = result.progress.step, result.total_steps
    if result.idle:
        return f"{step} of {total}: everything the run asks for was done already, nothing was changed"
    begun = f", continued from {result.started_at}" if result.started_at else ""
    rest = "" if step >= total else "; the same command continues"
    return f"{step} of {total}{begun}{rest}"


def _course(losses: Sequence[tuple[int, float]]) -> str:
    (first_step, first), (last_step, last) = losses[0], losses[-1]
    if len(losses) == 1:
        return f"{loss(first)} after step {first_step}"
    return f"{loss(first)} after step {first_step} -> {loss(last)} after step {last_step}"


def _perplexity(value: float) -> str:
    return f"{math.exp(value):,.2f}" if value < 50 else "-"
