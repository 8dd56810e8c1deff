"""`show`: the first rows of every source as they will be trained, and those that will not be, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from arrowtune.config import SFTConfig
from arrowtune.data.prepare import PrepareJob
from arrowtune.data.reasons import REASONS
from arrowtune.data.render import Renderer, RenderSpec
from arrowtune.data.sample import sample_source
from arrowtune.ingest import jobs_of, render_spec
from arrowtune.launch.devices import count_devices
from arrowtune.resolve import resolve
from arrowtune.types import Item, Skip
from arrowtune.view.preview import SKIPPED, PreviewedRow, row_text, runs_of, skip_text
from arrowtune.view.text import many, visible

_LOOK = 1000
"""Rows of a source that are looked at when skipped ones are asked for."""


@dataclass(frozen=True, slots=True)
class SourcePreview:
    """The first rows of a source.

    Attributes:
        name: Of the source.
        rows_read: How many rows were looked at.
        rows: Those that become examples.
        skips: Those that do not.
    """

    name: str
    rows_read: int
    rows: tuple[PreviewedRow, ...]
    skips: tuple[Skip, ...]


def shown(config: SFTConfig, *, rows: int, skipped: bool, full: bool) -> Callable[[Console], None]:
    """What `show` prints, as something that prints itself.

    Args:
        config: The run.
        rows: Rows of every source; with `skipped` the skipped ones among the first 1,000.
        skipped: Show the rows that are not used instead.
        full: Show long stretches of context whole.

    Raises:
        DataError: A source, its format or its template.
    """
    previews = list(preview_run(config, _LOOK if skipped else rows))

    def print_to(console: Console) -> None:
        colour = console.color_system is not None
        for preview in previews:
            for text in _texts(preview, colour=colour, skipped=skipped, full=full):
                console.print(text, end="")

    return print_to


def preview_run(config: SFTConfig, rows: int) -> Iterator[SourcePreview]:
    """Render the first rows of every source of a run."""
    devices, gpu = count_devices()
    run = resolve(config, devices=devices, gpu=gpu, for_training=False)
    spec = render_spec(run)
    for job in jobs_of(run):
        yield preview_source(job, spec, rows)


def preview_source(job: PrepareJob, spec: RenderSpec, rows: int) -> SourcePreview:
    """Render the first rows of a source."""
    sample = sample_source(job, spec, rows)
    found = [_preview(sample.renderer, job.name, item) for item in sample.items]
    used = tuple(row for row in found if isinstance(row, PreviewedRow))
    skips = [*sample.skips, *(row for row in found if isinstance(row, Skip))]
    skips.sort(key=lambda skip: (skip.origin.file, skip.origin.row))
    return SourcePreview(job.name, sample.rows_read, used, tuple(skips))


def _preview(renderer: Renderer, source: str, item: Item) -> PreviewedRow | Skip:
    preview = renderer.preview(item)
    if preview.skip is not None:
        return preview.skip
    text = _kept(renderer, item, preview.text, len(preview.tokens))
    trained = sum(weight > 0 for _, weight in preview.tokens)
    return PreviewedRow(
        source, item.origin, runs_of(text, preview.spans), len(preview.tokens), trained, len(preview.text) - len(text)
    )


def _kept(renderer: Renderer, item: Item, text: str, tokens: int) -> str:
    """The part of the render that the example holds: all of it, or what `max_length` leaves."""
    if tokens < renderer.spec.max_length:
        return text
    ids = renderer.encode([item]).input_ids.tolist()
    kept = renderer.engine.decode(ids).rstrip("\ufffd")  # The last token may end inside a character.
    return kept if text.startswith(kept) else text


def _texts(preview: SourcePreview, *, colour: bool, skipped: bool, full: bool) -> Iterator[Text]:
    if not skipped:
        for row in preview.rows:
            yield row_text(row, colour=colour, full=full)
            yield Text("\n")
    if skipped or preview.skips:
        among = f"{visible(preview.name)}: {many(len(preview.skips), 'row')} skipped among the first {preview.rows_read:,}\n"
        yield Text(among, style=SKIPPED if colour else "")
    yield skip_text(preview.skips, REASONS, colour=colour)
