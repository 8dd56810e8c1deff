"""The tokenizer of a model folder: written beside exported weights, and kept once in the run folder.

Templates and tokenizers are files that people edit. What a run was trained with is kept under a name made of its content, so
that a checkpoint can be exported with exactly that, whatever has become of the originals.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from arrowtune.errors import CheckpointError, ExportError
from arrowtune.fingerprint import digest_file, digest_json

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)


def write_tokenizer(folder: Path, source: Path, chat_template: str | None) -> None:
    """Copy a tokenizer into a model folder.

    Args:
        folder: The model folder.
        source: Holds `tokenizer.json`.
        chat_template: The template that was trained, written both as a file and into the tokenizer's configuration, since
            readers look in one or the other.

    Raises:
        OSError: A file cannot be written.
        ExportError: The tokenizer's configuration is no JSON.
    """
    settings = read_object(source / "tokenizer_config.json")
    for name in (*_FILES, *_code_of(settings)):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
        write_object(folder / "tokenizer_config.json", settings | {"chat_template": chat_template})


def keep_tokenizer(kept: Path, source: Path, chat_template: str | None) -> str:
    """Keep a copy in `kept`, whole or not at all, once for each content.

    Returns:
        Its name in `kept`.

    Raises:
        OSError: It cannot be written.
    """
    partial = kept / f".{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write_tokenizer(partial, source, chat_template)
        name = _content(partial)
        if not (kept / name).is_dir():
            for path in partial.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            os.rename(partial, kept / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return name


def kept_tokenizer(kept: Path, name: str) -> Path:
    """The folder of a kept tokenizer.

    Raises:
        CheckpointError: It is gone, or was changed.
    """
    folder = kept / name
    if not folder.is_dir():
        raise CheckpointError(f"the tokenizer that the checkpoint was trained with is gone: there is no folder {folder}")
    if _content(folder) != name:
        raise CheckpointError(f"the tokenizer in {folder} is not what the checkpoint was trained with: a file was changed")
    return folder


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none.

    Raises:
        ExportError: The file is no JSON.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ExportError(f"{path} is not JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def write_object(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object for people and programs."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _code_of(settings: Mapping[str, Any]) -> Iterator[str]:
    """The Python files that a tokenizer's configuration names, such as `tokenization_mine.MineTokenizer`."""
    named = settings.get("auto_map")
    values = named.values() if isinstance(named, dict) else [named]
    for value in values:
        for reference in value if isinstance(value, list) else [value]:
            if isinstance(reference, str):
                yield f"{reference.rsplit('--', 1)[-1].split('.')[0]}.py"


def _content(folder: Path) -> str:
    return digest_json({path.name: digest_file(path) for path in folder.iterdir() if path.is_file()})
