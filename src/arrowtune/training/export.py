"""Completing an export: tokenizer, template and stop tokens beside the weights, checked, then in place at once."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arrowtune.errors import ExportError
from arrowtune.training.tokenizer import read_object, write_object, write_tokenizer

MARKER = "arrowtune-export.json"
"""Tells a folder that a later export may replace from one that it must not touch."""

_STEP = re.compile(r"export-(\d+)")


def finish_export(
    partial: Path,
    final: Path,
    *,
    tokenizer_folder: Path,
    chat_template: str | None,
    stop_token_ids: tuple[int, ...],
    about: Mapping[str, Any] | None = None,
) -> list[str]:
    """Turn a folder of weights into a model folder that loads anywhere.

    Args:
        partial: Holds what the backend wrote: weights, configuration, the base model's generation settings.
        final: Where the folder goes; an older export there is replaced.
        tokenizer_folder: The tokenizer that made the ids.
        chat_template: The template that was trained.
        stop_token_ids: The end-of-turn tokens that were trained; generation must stop at them.
        about: What the marker says beside being ours, such as the step.

    Returns:
        What had to be mended, one sentence each.

    Raises:
        ExportError: A file cannot be written, or the weights are not what the configuration says.
    """
    try:
        write_tokenizer(partial, tokenizer_folder, chat_template)
        notes = _write_generation_config(partial, stop_token_ids)
        _check_weights(partial)
        write_object(partial / MARKER, {"written_by": "arrowtune export", **(about or {})})
        _replace(partial, final)
    except OSError as error:
        raise ExportError(f"the export {final} cannot be written: {error.strerror or error}", hint="free some space") from error
    return notes


def marker_of(folder: Path) -> Mapping[str, Any] | None:
    """What an export of ours says of itself; None where the folder is no export."""
    try:
        return read_object(folder / MARKER) or None
    except (OSError, ExportError):
        return None


def prune_exports(folder: Path, *, keep: int, step: int) -> None:
    """Remove all but the newest `keep` of the exports `export-STEP` in a run folder.

    Those of steps beyond `step` are of a run that was then continued from further back: they go first.
    """
    named = ((int(match[1]), path) for path in folder.glob("export-*") if (match := _STEP.fullmatch(path.name)))
    own = sorted((number <= step, number, path) for number, path in named if marker_of(path))
    for _, _, path in own[:-keep]:
        removed = path.with_name(f".{path.name}.replaced")
        shutil.rmtree(removed, ignore_errors=True)
        os.rename(path, removed)
        shutil.rmtree(removed, ignore_errors=True)


def _write_generation_config(folder: Path, stop_token_ids: tuple[int, ...]) -> list[str]:
    path = folder / "generation_config.json"
    settings = read_object(path)
    notes: list[str] = []
    if not settings.get("do_sample"):
        # Sampling settings without sampling: transformers refuses to save such a file, and warns on loading it.
        idle = [name for name in ("temperature", "top_p", "top_k", "min_p", "typical_p") if settings.pop(name, None) is not None]
        notes += [f"generation_config.json: {name} was left out, since do_sample is not set" for name in idle]
    if stop_token_ids:
        before = settings.get("eos_token_id")
        known = before if isinstance(before, list) else [] if before is None else [before]
        stops = [*stop_token_ids, *(token for token in known if token not in stop_token_ids)]
        settings["eos_token_id"] = stops[0] if len(stops) == 1 else stops
    write_object(path, settings)
    return notes


def _check_weights(folder: Path) -> None:
    """Read the headers back: every tensor is there once, in the dtype that the configuration names."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ExportError(f"{folder} holds no weights")
    if (folder / "adapter_config.json").exists():
        return  # Adapters alone: the configuration is that of the model they belong to.
    told = read_object(folder / "config.json").get("dtype")
    names = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
    for file in files:
        for name, tensor in _header(file).items():
            if name != "__metadata__" and tensor["dtype"] in names.values() and tensor["dtype"] != names.get(str(told)):
                raise ExportError(f"{file.name}: {name} is {tensor['dtype']}, but config.json says {told}")


def _header(file: Path) -> dict[str, Any]:
    """The table of contents of a safetensors file: its length as 8 little-endian bytes, then JSON."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header: dict[str, Any] = json.loads(stream.read(size))
    return header


def _replace(partial: Path, final: Path) -> None:
    final.parent.mkdir(parents=True, exist_ok=True)
    for path in partial.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    old = final.with_name(f".{final.name}.replaced")
    if final.exists():
        check_replaceable(final)
        shutil.rmtree(old, ignore_errors=True)
        os.rename(final, old)
    os.rename(partial, final)
    shutil.rmtree(old, ignore_errors=True)


def check_replaceable(final: Path) -> None:
    """Make sure that an export may go to `final`: nothing is there, or an export of ours.

    Raises:
        ExportError: Something else is there; it is never removed.
    """
    if final.exists() and not (final.is_dir() and ((final / MARKER).is_file() or not any(final.iterdir()))):
        raise ExportError(f"{final} exists and was not written by an export", hint="name a folder that does not exist yet")
