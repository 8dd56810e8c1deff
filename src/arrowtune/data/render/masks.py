"""Rows to flat ids, and spans of characters to weights of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from arrowtune.data.render.engine import Engine, Ids, Int32, Int64
from arrowtune.data.render.rows import Job
from arrowtune.data.render.spans import Span

_ZERO = np.zeros(1, np.int64)


def assemble(jobs: Sequence[Job], engine: Engine) -> Ids:
    """Encode rows. Most are one text, and a batch of those is one call of the engine."""
    if all(job.pieces is None for job in jobs):
        return engine.encode([job.text for job in jobs])
    texts = [piece.text for job in jobs for piece in job.pieces or () if piece.ids is None]
    return _join(jobs, engine.encode([*(job.text for job in jobs if job.pieces is None), *texts]))


def _join(jobs: Sequence[Job], encoded: Ids) -> Ids:
    """Lay out rows of pieces: whole rows come first among the encoded texts, then the pieces that were not encoded yet."""
    whole, loose = iter(range(len(encoded.offsets))), iter(range(sum(job.pieces is None for job in jobs), len(encoded.offsets)))
    ids: list[Int32] = []
    starts: list[Int64] = []
    counts, sizes = np.zeros(len(jobs), np.int64), np.zeros(len(jobs), np.int64)
    byte = 0
    for k, job in enumerate(jobs):
        begin = byte
        for piece in (None,) if job.pieces is None else job.pieces:
            if piece is not None and piece.ids is not None:
                ids.append(piece.ids)
                starts.append(piece.starts + byte)
                size = len(piece.text.encode())
            else:
                text = next(whole) if piece is None else next(loose)
                part = slice(encoded.offsets[text], encoded.offsets[text + 1])
                ids.append(encoded.ids[part])
                starts.append(encoded.starts[part] - encoded.base[text] + byte)
                size = int(encoded.base[text + 1] - encoded.base[text])
            counts[k] += len(ids[-1])
            byte += size
        sizes[k] = byte - begin
    return Ids(
        np.concatenate([np.zeros(0, np.int32), *ids]),
        np.concatenate([_ZERO, np.cumsum(counts)]),
        np.concatenate([_ZERO[:0], *starts]),
        np.concatenate([_ZERO, np.cumsum(sizes)]),
        encoded.referred,
    )


def weights_of(tokens: Ids, jobs: Sequence[Job]) -> tuple[npt.NDArray[np.float32], int]:
    """The loss weight of every token, and how many rows have a token that straddles the start of a span.

    A token is trained if it begins inside a span; one that begins before it and ends in it is context.

    Args:
        tokens: The tokens of all rows.
        jobs: The rows; spans are disjoint and in order.

    Returns:
        float32[t] and a count. The first token of every row has weight 0: nothing predicts it.
    """
    row_of = np.repeat(np.arange(len(jobs)), [len(job.spans) for job in jobs])
    edges = np.array([edge for job in jobs for edge in _byte_edges(job.spans, job.text)], np.int64).reshape(-1, 2)
    edges += tokens.base[row_of][:, None]
    # Tokens of no width sit at the edge between rows; a row's search stays inside it.
    low, high = tokens.offsets[row_of], tokens.offsets[row_of + 1]
    first, last = np.searchsorted(tokens.starts, edges.T)
    first, last = np.clip(first, low, high), np.clip(last, low, high)
    ends = np.append(tokens.starts, tokens.base[-1])
    straddles = (first > low) & (np.minimum(ends[first], tokens.base[row_of + 1]) != edges[:, 0])
    # Context and span take turns. Repeating is exact, where a running sum of weights would round.
    levels = np.zeros(2 * len(row_of) + 1, np.float32)
    levels[1::2] = [span[2] for job in jobs for span in job.spans]
    bounds = np.stack([first, last], 1).reshape(-1)
    weights = np.repeat(levels, np.diff(np.concatenate([_ZERO, bounds, [len(tokens.ids)]])))
    weights[tokens.offsets[:-1][np.diff(tokens.offsets) > 0]] = 0
    return weights, len(np.unique(row_of[straddles]))


def _byte_edges(spans: Sequence[Span], text: str) -> list[int]:
    if text.isascii():
        return [edge for start, end, _ in spans for edge in (start, end)]
    edges, byte, at = [], 0, 0
    for start, end, _ in spans:
        for place in (start, end):
            byte += len(text[at:place].encode())
            at = place
            edges.append(byte)
    return edges
