"""Which columns of a pretokenized source say what, and which of them it must not have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from arrowtune.errors import FormatError

MASK = "mask"
"""The key of a source's reading that says where the mask is."""

Kind = Literal["mask", "weights", "labels", "all"]

IGNORED = -100
"""The label of a token that is context."""

_REFUSED: Mapping[str, str] = {
    "num_actions": "counts trained tokens from the end; write a loss_mask with 0 or 1 for every token instead",
    "position_ids": "says that rows are packed already; give every document a row of its own, arrowtune packs them",
    "seq_lengths": "says that rows are packed already; give every document a row of its own, arrowtune packs them",
    "cu_seqlens": "says that rows are packed already; give every document a row of its own, arrowtune packs them",
    **dict.fromkeys(
        ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "images", "image"),
        "holds images; only text is trained: leave such rows out",
    ),
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that are read.

    Attributes:
        ids: The token ids.
        mask: What says which of them are trained; "" where all are.
        kind: What `mask` holds: 0 and 1, weights, or labels in which -100 is context.
        attention: A mask that must be all ones, or "".
    """

    ids: str
    mask: str
    kind: Kind
    attention: str

    def names(self) -> list[str]:
        """All of them."""
        return [name for name in (self.ids, self.mask, self.attention) if name]


def choose(there: Collection[str], reading: Mapping[str, str | None], place: object) -> Columns:
    """Find the columns of rows.

    Args:
        there: The columns that the rows have.
        reading: The source's names of columns by the format's own, and under `MASK` its `mask`.
        place: The file or row, for errors.

    Raises:
        FormatError: One is missing, one says something that cannot be honoured, or two say different things.
    """

    def called(name: str) -> str:
        return reading.get(name) or name

    for name, reason in _REFUSED.items():
        if name in there and name not in reading.values():
            raise FormatError(f"{place}: the column {name} {reason}")
    ids, labels = called("input_ids"), called("labels")
    if ids not in there:
        raise FormatError(f"{place}: the column {ids} is missing", hint="pretokenized rows have input_ids and loss_mask")
    attention = called("attention_mask") if called("attention_mask") in there else ""
    asked = reading.get(MASK, "")
    if asked == "all":
        return Columns(ids, "", "all", attention)
    if asked == "labels":
        return Columns(ids, _present(labels, there, place), "labels", attention)
    if labels in there and not asked:
        raise FormatError(
            f"{place}: the column {labels} could be the mask",
            hint="say which is meant with mask: labels (-100 is context) or mask: loss_mask of the source",
        )
    if called("loss_weights") in there:
        return Columns(ids, called("loss_weights"), "weights", attention)
    return Columns(ids, _present(called("loss_mask"), there, place), "mask", attention)


def _present(name: str, there: Collection[str], place: object) -> str:
    if name not in there:
        raise FormatError(
            f"{place}: the column {name} is missing",
            hint="write 0 or 1 for every token; name a differing column with columns, or say mask: all to train every token",
        )
    return name
