"""Pieces of rows to flat ids, and spans of characters to weights of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arrowtune.data.render.control import Piece
from arrowtune.data.render.engine import Engine, Ids, Int32, Int64
from arrowtune.data.render.spans import Span


@dataclass(frozen=True, slots=True)
class Layout:
    """The tokens of a batch of rows; fields as in `engine.Ids`, one entry per row.

    Attributes:
        ids, offsets, starts, base, referred: As in `engine.Ids`.
    """

    ids: Int32
    offsets: Int64
    starts: Int64
    base: Int64
    referred: int


def assemble(rows: Sequence[Sequence[Piece]], engine: Engine) -> Layout:
    """Encode rows of pieces. Most rows are one piece, and a batch of those is one call of the engine."""
    texts = [piece.text for row in rows for piece in row if piece.ids is None and piece.token is None]
    encoded = engine.encode(texts)
    if len(texts) == len(rows) and all(len(row) == 1 for row in rows):
        return Layout(encoded.ids, encoded.offsets, encoded.starts, encoded.base, encoded.referred)
    return _join(rows, encoded)


def _join(rows: Sequence[Sequence[Piece]], encoded: Ids) -> Layout:
    ids: list[Int32] = []
    starts: list[Int64] = []
    counts, sizes = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    text, byte = 0, 0
    for k, row in enumerate(rows):
        begin = byte
        for piece in row:
            size = len(piece.text.encode())
            if piece.token is not None or piece.ids is not None:
                tokens = np.array([piece.token] if piece.token is not None else piece.ids, np.int32)
                places = np.full(len(tokens), byte, np.int64)
            else:
                part = slice(encoded.offsets[text], encoded.offsets[text + 1])
                tokens, places = encoded.ids[part], encoded.starts[part] - encoded.base[text] + byte
                text += 1
            ids.append(tokens)
            starts.append(places)
            counts[k] += len(tokens)
            byte += size
        sizes[k] = byte - begin
    zero = np.zeros(1, np.int64)
    return Layout(
        np.concatenate([np.zeros(0, np.int32), *ids]),
        np.concatenate([zero, np.cumsum(counts)]),
        np.concatenate([zero[:0], *starts]),
        np.concatenate([zero, np.cumsum(sizes)]),
        encoded.referred,
    )


def weights_of(layout: Layout, spans: Sequence[Sequence[Span]], texts: Sequence[str]) -> tuple[npt.NDArray[np.float32], int]:
    """The loss weight of every token, and how many rows have a token that straddles the start of a span.

    A token is trained if it begins inside a span; one that begins before it and ends in it is context.

    Args:
        layout: The tokens.
        spans: Per row, disjoint and in order, in characters.
        texts: The text of every row.

    Returns:
        float32[t] and a count. The first token of every row has weight 0: nothing predicts it.
    """
    row_of = np.repeat(np.arange(len(spans)), [len(row) for row in spans])
    edges = np.array([edge for row, text in zip(spans, texts, strict=True) for edge in _byte_edges(row, text)], np.int64).reshape(-1, 2)
    values = np.array([span[2] for row in spans for span in row], np.float32)
    edges += layout.base[row_of][:, None]
    first = np.searchsorted(layout.starts, edges[:, 0])
    last = np.searchsorted(layout.starts, edges[:, 1])
    # Tokens of no width sit at the edge between rows; they belong to their own.
    first = np.maximum(first, layout.offsets[row_of])
    last = np.clip(last, first, layout.offsets[row_of + 1])
    inside = np.minimum(first, len(layout.starts) - 1)
    straddles = (first > layout.offsets[row_of]) & ((first >= len(layout.starts)) | (layout.starts[inside] != edges[:, 0]))
    # Alternate context and span: repeating is exact, where a running sum of weights would round.
    bounds = np.stack([first, last], 1).reshape(-1)
    lengths = np.diff(np.concatenate([np.zeros(1, np.int64), bounds, np.array([len(layout.ids)])]))
    levels = np.zeros(2 * len(values) + 1, np.float32)
    levels[1::2] = values
    weights = np.repeat(levels, lengths)
    weights[layout.offsets[:-1][np.diff(layout.offsets) > 0]] = 0
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
