"""Completing an export: tokenizer, template and stop tokens beside the weights, checked, then in place at once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arrowtune.errors import ExportError

MARKER = "arrowtune-export.json"
"""Tells a folder that a later export may replace from one that it must not touch."""

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)


def finish_export(
    partial: Path,
    final: Path,
    *,
    tokenizer_folder: Path,
    chat_template: str | None,
    stop_token_ids: tuple[int, ...],
    generation_config: Mapping[str, Any] | None = None,
) -> list[str]:
    """Turn a folder of weights into a model folder that loads anywhere.

    Args:
        partial: Holds what the backend wrote.
        final: Where the folder goes; an older export there is replaced.
        tokenizer_folder: The tokenizer that made the ids.
        chat_template: The template that was trained, written both as a file and into the tokenizer's configuration, since
            readers look in one or the other.
        stop_token_ids: The end-of-turn tokens that were trained; generation must stop at them.
        generation_config: What the base model came with.

    Returns:
        What had to be mended, one sentence each.

    Raises:
        ExportError: A file cannot be written, or the weights are not what the configuration says.
    """
    try:
        _write_tokenizer(partial, tokenizer_folder, chat_template)
        notes = _write_generation_config(partial, generation_config or {}, stop_token_ids)
        _check_weights(partial)
        _write_json(partial / MARKER, {"written_by": "arrowtune export"})
        _replace(partial, final)
    except OSError as error:
        raise ExportError(f"the export {final} cannot be written: {error.strerror or error}", hint="free some space") from error
    return notes


def _write_tokenizer(folder: Path, source: Path, chat_template: str | None) -> None:
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    if chat_template is None:
        return
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    path = folder / "tokenizer_config.json"
    settings = _read_object(path) | {"chat_template": chat_template}
    _write_json(path, settings)


def _write_generation_config(folder: Path, base: Mapping[str, Any], stop_token_ids: tuple[int, ...]) -> list[str]:
    path = folder / "generation_config.json"
    settings = _read_object(path) | dict(base)
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
    _write_json(path, settings)
    return notes


def _check_weights(folder: Path) -> None:
    """Read the headers back: every tensor is there once, in the dtype that the configuration names."""
    told = _read_object(folder / "config.json").get("dtype")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ExportError(f"{folder} holds no weights")
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


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ExportError(f"{path} is not JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
