"""What becomes of tokens that are more than `max_length`, and of rows in which nothing is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from arrowtune.data.render.spec import Encoded, RenderSpec
from arrowtune.errors import FormatError, RenderError
from arrowtune.protocols import Tokens
from arrowtune.types import Origin, Skip


def fit(
    origins: Sequence[Origin],
    rows: npt.NDArray[np.int64],
    tokens: Tokens,
    skips: list[Skip],
    counts: Counter[str],
    spec: RenderSpec,
) -> Encoded:
    """Apply `max_length`, and leave out rows without anything to train.

    Args:
        origins: One for each example.
        rows: int64[n], which of the raw rows each example is.
        tokens: The examples.
        skips: Those of other rows; gains those made here.
        counts: What was met; gains `truncated`.
        spec: Names the length and the policy.

    Raises:
        RenderError: An example is longer, and that is an error.
    """
    limit, policy = spec.max_length, spec.overlong
    ids, weights = tokens.input_ids, tokens.loss_weights
    lengths = np.diff(tokens.offsets)
    over = lengths > limit
    if policy == "raise" and over.any():
        row = int(np.argmax(over))
        raise RenderError(
            f"{origins[row]} has {lengths[row]} tokens, more than data.max_length {limit}",
            hint="raise data.max_length, or set data.overlong to truncate or drop",
        )
    sizes = np.minimum(lengths, limit)
    so_far = np.concatenate([np.zeros(1, np.int64), np.cumsum(weights > 0)])
    keep = so_far[tokens.offsets[:-1] + sizes] > so_far[tokens.offsets[:-1]]
    if policy == "drop":
        keep &= ~over
    for row in np.flatnonzero(~keep).tolist():
        if not over[row]:
            skips.append(Skip(origins[row], "no_trained_tokens"))
        elif policy == "drop":
            skips.append(Skip(origins[row], "overlong", f"{lengths[row]} tokens"))
        else:
            skips.append(Skip(origins[row], "truncated_away", f"nothing is trained within its first {limit} tokens"))
    counts["truncated"] += int((over & keep).sum())
    if over.any() or not keep.all():
        place = np.arange(len(ids)) - np.repeat(tokens.offsets[:-1], lengths)
        stays = (place < limit) & np.repeat(keep, lengths)
        ids, weights = ids[stays], weights[stays]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[keep])])
    return Encoded(ids, weights, offsets, rows[keep], skips, {name: count for name, count in counts.items() if count})


def split(tokens: Tokens, limit: int) -> tuple[Tokens, npt.NDArray[np.int64]]:
    """Cut examples that are too long into as few pieces as hold them, of about the same size: no token is lost or doubled.

    Returns:
        The pieces, and int64[pieces], the example that each is of.
    """
    lengths = np.diff(tokens.offsets)
    counts = np.maximum(1, -(-lengths // limit))
    example = np.repeat(np.arange(len(lengths)), counts)
    within = np.arange(len(example)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = tokens.offsets[:-1][example] + within * lengths[example] // counts[example]
    return Tokens(tokens.input_ids, tokens.loss_weights, np.append(starts, tokens.offsets[-1])), example


def without_first(tokens: Tokens) -> Tokens:
    """The weight of an example's first token is 0: nothing predicts it."""
    starts = tokens.offsets[:-1][np.diff(tokens.offsets) > 0]
    if not tokens.loss_weights[starts].any():
        return tokens
    weights = tokens.loss_weights.copy()
    weights[starts] = 0
    return Tokens(tokens.input_ids, weights, tokens.offsets)


def check_ids(tokens: Tokens, limit: int, origins: Sequence[Origin]) -> None:
    """Make sure that ids are in the vocabulary.

    Raises:
        FormatError: One is not.
    """
    wrong = (tokens.input_ids < 0) | (tokens.input_ids >= limit)
    if wrong.any():
        position = int(np.argmax(wrong))
        row = int(np.searchsorted(tokens.offsets, position, "right")) - 1
        raise FormatError(
            f"{origins[row]}: input_ids[{position - int(tokens.offsets[row])}] = {tokens.input_ids[position]} "
            f"is outside of the vocabulary of {limit} ids"
        )


def joined(spans: Sequence[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """Spans of one weight that touch, as one."""
    out: list[tuple[int, int, float]] = []
    for start, end, weight in spans:
        if out and out[-1][1] == start and out[-1][2] == weight:
            out[-1] = (out[-1][0], end, weight)
        else:
            out.append((start, end, weight))
    return out
