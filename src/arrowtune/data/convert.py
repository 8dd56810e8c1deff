"""Tokenizers of other forms (GGUF, SentencePiece, vocabulary and merges) as `tokenizer.json`, made once and kept.

transformers does it, in a process of its own: this one never imports it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from arrowtune.data.store_format import disk_error
from arrowtune.errors import ConfigError, Problem
from arrowtune.fingerprint import digest_json

CONVERTED = "tokenizers"
"""The folder of the cache that holds them."""

_NAMES = ("added_tokens", "chat_template", "config.json", "merges", "special_tokens_map", "token", "vocab")
_SUFFIXES = {".model", ".txt"}

_CONVERT = """
import json, os, sys
job = json.loads(sys.argv[1])
from transformers import AutoTokenizer
from transformers.utils import logging
logging.set_verbosity_error()
options = {"gguf_file": job["gguf_file"]} if job["gguf_file"] else {}
tokenizer = AutoTokenizer.from_pretrained(job["path"], trust_remote_code=job["trust_remote_code"], **options)
if not tokenizer.is_fast:
    sys.exit("this tokenizer has no tokenizer.json form")
tokenizer.save_pretrained(job["out"])
"""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What is to be converted.

    Attributes:
        key: The key of the run file that named the folder, for errors.
        folder: Where the files are.
        gguf: The GGUF file among them, or None.
        trust: Whether the tokenizer's own code may run.
    """

    key: str
    folder: Path
    gguf: str | None
    trust: bool

    def failed(self, reason: str) -> ConfigError:
        """The error for a folder that gives no tokenizer."""
        return no_tokenizer(self.key, str(self.folder), reason)

    def inputs(self) -> list[list[Any]]:
        """Name, size and time of every file that a conversion may read, so that a changed one is converted again.

        Raises:
            ConfigError: The folder cannot be read, or holds no tokenizer.
        """
        try:
            found = sorted(self._files())
            stats = [(name, (self.folder / name).stat()) for name in found if (self.folder / name).is_file()]
        except OSError as error:
            raise self.failed(error.strerror or str(error)) from None
        if self.gguf is not None and self.gguf not in found:
            raise self.failed(f"there is no {self.gguf}")
        if self.gguf is None and all(name == "config.json" for name, _ in stats):
            raise self.failed("the folder holds no tokenizer")
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]

    def _files(self) -> Iterator[str]:
        if self.gguf is not None and (self.folder / self.gguf).is_file():
            yield self.gguf
        for path in self.folder.iterdir():
            code = self.trust and path.suffix == ".py"
            if path.name != self.gguf and (path.name.startswith(_NAMES) or path.suffix in _SUFFIXES or code):
                yield path.name


def no_tokenizer(key: str, path: str, reason: str) -> ConfigError:
    """The error for a place that gives no tokenizer.

    Args:
        key: The key of the run file that named it.
        path: As written there.
        reason: One clause.
    """
    return ConfigError(
        f"the tokenizer of {path} cannot be loaded: {reason}",
        hint="give a folder with tokenizer.json, a hub id, or 'tiny'",
        problems=[Problem(key, f"cannot load {path}")],
    )


def convert(job: Conversion, cache: Path) -> Path:
    """The folder with the converted tokenizer, made unless an earlier conversion of the same files is there.

    Raises:
        ConfigError: transformers cannot load it.
        StoreError: The cache folder cannot be written.
    """
    asked = {"path": str(job.folder.resolve()), "gguf_file": job.gguf, "trust_remote_code": job.trust}
    out = cache / CONVERTED / digest_json([asked, job.inputs(), _transformers()])
    if os.path.isfile(out / "tokenizer.json"):
        with contextlib.suppress(OSError):
            os.utime(out)  # Last used now: `cache prune` goes by that.
        return out
    aside = out.with_name(f".tmp-{secrets.token_hex(8)}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _run(job, {**asked, "out": str(aside)})
        _publish(aside, out)
    except OSError as error:
        raise disk_error(error, cache) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return out


def _run(job: Conversion, asked: dict[str, Any]) -> None:
    command = [sys.executable, "-c", _CONVERT, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0 or not (Path(asked["out"]) / "tokenizer.json").is_file():
        raise job.failed((done.stderr.strip().splitlines() or ["transformers gave no reason"])[-1][:300])


def _publish(aside: Path, out: Path) -> None:
    for path in aside.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    try:
        aside.rename(out)
    except OSError:
        if not (out / "tokenizer.json").is_file():
            raise
        # Another process was first; its folder is complete.


def _transformers() -> str:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return ""
