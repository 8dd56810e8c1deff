"""Whether what a source gave can be trained on: too many bad rows, none left, or a template that proves nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arrowtune.data.report import BAD_ROW, SHOWN
from arrowtune.errors import EmptyDataset, FormatError, RenderError
from arrowtune.types import Origin, Skip

_UNPROVED = ("spans_unproved", "no_end_of_turn", "template_error")


def judge(name: str, manifest: Mapping[str, Any], max_bad_rows: float) -> None:
    """Refuse what cannot be trained on, or should not be.

    Args:
        name: Of the source.
        manifest: Its counts, as a store keeps them.
        max_bad_rows: The share of malformed rows that is put up with.

    Raises:
        FormatError: More rows are malformed than that.
        RenderError: The template proves the trained spans of no row.
        EmptyDataset: No row is left for any other reason.
    """
    skipped, read = manifest["skipped"], manifest["rows_read"]
    if skipped.get(BAD_ROW, 0) > max_bad_rows * read:
        skips, count = _skips(manifest, (BAD_ROW,)), skipped[BAD_ROW]
        raise too_many_bad_rows(name, skips, read, count=count, form=manifest["parts"]["format"], allowed=max_bad_rows)
    if manifest["rows"]:
        return
    if read and sum(skipped.get(reason, 0) for reason in _UNPROVED) == read:
        first = _skips(manifest, _UNPROVED)[0]
        raise RenderError(
            f"source {name!r}: the chat template proves the trained spans of no row; "
            f"the first is {first.origin}: {first.detail or first.reason}",
            hint="set tokenizer.chat_template to a template with {% generation %} tags around the assistant's words",
        )
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items(), key=lambda item: (-item[1], item[0])))
    raise EmptyDataset(
        f"source {name!r}: no row can be trained on ({read} rows read, 0 used" + (f", skipped: {reasons})" if reasons else ")"),
        hint="arrowtune show RUN --skipped shows the rows and why" if read else "check the path, or leave the source out",
    )


def too_many_bad_rows(
    name: str, skips: Sequence[Skip], read: int, *, count: int | None = None, form: str = "", allowed: float | None = None
) -> FormatError:
    """The error that shows where the first malformed rows are."""
    shown = "".join(f"\n  {skip.origin}: {skip.detail}" for skip in skips[:SHOWN])
    count = len(skips) if count is None else count
    what = f"not of the format {form}" if form else "not readable"
    more = "" if allowed is None else f", more than data.max_bad_rows={allowed:g} allows"
    return FormatError(
        f"source {name!r}: {count} of {read} rows are {what}{more}:{shown}",
        hint="mend them, name the right format, or raise data.max_bad_rows",
    )


def _skips(manifest: Mapping[str, Any], reasons: Sequence[str]) -> list[Skip]:
    found = [
        Skip(Origin(entry["file"], entry["row"], entry["line"]), entry["reason"], entry["detail"])
        for entry in manifest["skipped_rows"]
        if entry["reason"] in reasons
    ]
    return sorted(found, key=lambda skip: (skip.origin.file, skip.origin.row)) if len(reasons) > 1 else found
