"""The tokenizer's files: finding them, reading what rendering needs, and nothing of transformers in this process.

`load_tokenizer` ends with a local folder that holds `tokenizer.json`. Where a model brings another form (GGUF, a
SentencePiece model), transformers converts it once, in a process of its own, into the cache.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from arrowtune.data.convert import Conversion, convert, no_tokenizer
from arrowtune.errors import ConfigError, Problem, RenderError
from arrowtune.fingerprint import digest_bytes

if TYPE_CHECKING:
    from arrowtune.data.config import TokenizerConfig

TINY = "tiny"


@dataclass(frozen=True, slots=True)
class AddedToken:
    """An entry of the added vocabulary: text that becomes one id before anything else looks at it.

    Attributes:
        id: The id.
        text: What is matched.
        special: BOS, EOS, turn and role markers, as the tokenizer flags them.
        lstrip, rstrip: It swallows the white space before or after it.
        merged: The model's own vocabulary holds the same text under the same id, so that ordinary text may form it too.
    """

    id: int
    text: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    merged: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer in a local folder. Small and picklable: workers open the files themselves.

    Attributes:
        folder: Holds `tokenizer.json`.
        chat_template: The Jinja text, or None where there is none.
        special_tokens: `bos_token`, `eos_token` and so on, as transformers hands them to templates.
        vocab_size: One more than the largest token id.
        added: The added vocabulary.
        alphabet: How tokens spell bytes: `bytes` (byte-level), `pieces` (SentencePiece-like with byte fallback), or `other`.
        normalizer: What is done to text before it is cut: `none`, `nfc`, or `other`.
    """

    folder: Path
    chat_template: str | None
    special_tokens: Mapping[str, str]
    vocab_size: int
    added: tuple[AddedToken, ...]
    alphabet: Literal["bytes", "pieces", "other"]
    normalizer: Literal["none", "nfc", "other"]

    @property
    def json_path(self) -> Path:
        """The file with vocabulary, merges and added tokens."""
        return self.folder / "tokenizer.json"

    def vocabulary(self) -> Mapping[str, int]:
        """The model's own vocabulary: token, as it is written there, and id. Read from the file.

        Raises:
            RenderError: The file cannot be read any more.
        """
        model = (_read_json(self.json_path, cut=_without_merges) or {}).get("model") or {}
        found = model.get("vocab")
        return found if isinstance(found, dict) else {}

    def digests(self) -> dict[str, str]:
        """Named digests of everything that decides ids and renders."""
        return {
            "tokenizer": digest_bytes(_read_bytes(self.json_path)),
            "chat_template": digest_bytes((self.chat_template or "").encode("utf-8", "surrogatepass")),
            "special_tokens": digest_bytes(json.dumps(dict(self.special_tokens), sort_keys=True).encode()),
        }


def load_tokenizer(
    config: TokenizerConfig,
    model_path: str,
    *,
    cache: Path,
    gguf_file: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> TokenizerFiles:
    """Find the tokenizer of a run.

    Args:
        config: The `tokenizer` section; its path goes before the model's.
        model_path: `tiny`, a local folder, or a hub id.
        cache: Where converted tokenizers are kept.
        gguf_file: The GGUF file inside the model's folder that holds the tokenizer.
        revision: The commit, tag or branch of a hub id.
        trust_remote_code: Whether a tokenizer's own code may run during a conversion.

    Raises:
        ConfigError: There is no such tokenizer.
        RenderError: The files are there and cannot be read.
        StoreError: The cache folder cannot hold a converted tokenizer.
    """
    path = config.path or model_path
    if path == TINY:
        return read_tokenizer(Path(str(importlib.resources.files("arrowtune") / "assets" / "tiny")), config.chat_template)
    gguf = None if config.path else gguf_file
    key = "tokenizer.path" if config.path else "model.path"
    folder = Path(path).expanduser()
    if not folder.is_dir():
        if not _HUB_ID.fullmatch(path):
            raise no_tokenizer(key, path, "there is no such folder")
        folder = _fetched(key, path, None if config.path else revision, gguf)
    if gguf is not None or not os.path.isfile(folder / "tokenizer.json"):  # False, not an error, where a right is missing
        folder = convert(Conversion(key, folder, gguf, trust_remote_code), cache)
    return read_tokenizer(folder, config.chat_template)


def read_tokenizer(folder: Path, chat_template: str | None = None) -> TokenizerFiles:
    """Read a folder that holds `tokenizer.json`.

    Args:
        folder: The folder.
        chat_template: A `.jinja` file or a template text that replaces the folder's own.

    Raises:
        RenderError: A file is missing or is not valid JSON.
        ConfigError: The named template file does not exist.
    """
    model = _read_json(folder / "tokenizer.json", cut=_without_merges)
    if model is None:
        raise RenderError(f"there is no tokenizer.json in {folder}", hint="point tokenizer.path at a folder that has one")
    settings = _read_json(folder / "tokenizer_config.json") or {}
    tokens = {**_token_names(_read_json(folder / "special_tokens_map.json") or {}), **_token_names(settings)}
    template = _template_text(chat_template) if chat_template else _own_template(folder, settings)
    try:
        return TokenizerFiles(
            folder=folder,
            chat_template=template,
            special_tokens=tokens,
            vocab_size=_vocab_size(model, folder),
            added=tuple(_added_token(token, model) for token in model.get("added_tokens") or []),
            alphabet=_alphabet(model),
            normalizer=_normalizer(model),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise RenderError(f"{folder / 'tokenizer.json'} is not as tokenizers write it: {reason}", hint=_AGAIN) from None


def _added_token(token: Mapping[str, Any], model: Mapping[str, Any]) -> AddedToken:
    special, left, right = (bool(token.get(name)) for name in ("special", "lstrip", "rstrip"))
    vocab = model["model"]["vocab"]
    # A list of pieces is searched by no one: such a token counts as merged, and the engine is asked.
    merged = not isinstance(vocab, dict) or vocab.get(token["content"]) == token["id"]
    return AddedToken(int(token["id"]), token["content"], special, left, right, merged)


def _steps(part: Any, inner: str) -> list[dict[str, Any]]:
    """The steps of a possibly nested sequence of normalizers, pre-tokenizers or decoders."""
    if not isinstance(part, dict):
        return []
    return [step for item in part[inner] for step in _steps(item, inner)] if part.get("type") == "Sequence" else [part]


def _alphabet(model: Mapping[str, Any]) -> Literal["bytes", "pieces", "other"]:
    cuts = _steps(model.get("pre_tokenizer"), "pretokenizers")
    if any(step["type"] == "ByteLevel" for step in cuts):
        return "bytes"
    decoders = [step["type"] for step in _steps(model.get("decoder"), "decoders")]
    return "pieces" if "ByteFallback" in decoders and model["model"].get("type") == "BPE" else "other"


def _normalizer(model: Mapping[str, Any]) -> Literal["none", "nfc", "other"]:
    steps = _steps(model.get("normalizer"), "normalizers")
    # A space written as U+2581 is the spelling of the pieces, not a change of the text.
    steps = [step for step in steps if not (step["type"] == "Replace" and step.get("content") == "\u2581")]
    return "none" if not steps else "nfc" if [step["type"] for step in steps] == ["NFC"] else "other"


def _vocab_size(model: dict[str, Any], folder: Path) -> int:
    vocab = (model.get("model") or {}).get("vocab")
    if not isinstance(vocab, dict | list):
        raise RenderError(f"{folder / 'tokenizer.json'} has no vocabulary", hint=_AGAIN)
    top = max(vocab.values(), default=-1) + 1 if isinstance(vocab, dict) else len(vocab)
    return max([top, *(int(token["id"]) + 1 for token in model.get("added_tokens") or [])])


def _token_names(settings: Mapping[str, Any]) -> dict[str, str]:
    out = {}
    for name, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            out[name] = text
    return out


def _own_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _decoded(file, _read_bytes(file))
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _template_text(value: str) -> str:
    if "{{" in value or "{%" in value or "\n" in value:
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the chat template {value} cannot be read: {error}",
            hint="tokenizer.chat_template is a .jinja file or the template itself",
            problems=[Problem("tokenizer.chat_template", f"cannot read {value}")],
        ) from None


def _without_merges(data: bytes) -> bytes:
    """A `tokenizer.json` without its merges where they stand last, as tokenizers writes them: half of the time to parse it."""
    start, end = data.rfind(b'"merges":'), data.rfind(b"]")
    if start < 0 or end < start or data[start + 9 : start + 20].lstrip()[:1] != b"[" or data[end + 1 :].split() not in _CLOSED:
        return data
    return data[:start] + b'"merges":[]' + data[end + 1 :]


_CLOSED = ([b"}}"], [b"}", b"}"])


def _read_json(path: Path, cut: Callable[[bytes], bytes] = bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(cut(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not isinstance(value, dict):
        raise RenderError(f"{path} must hold a JSON object", hint=_AGAIN)
    return value


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error.strerror or error) from None


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, reason: object) -> RenderError:
    return RenderError(f"{path} cannot be read: {reason}", hint=_AGAIN)


_AGAIN = "save the tokenizer again with transformers, or fetch the file again"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab*",
    "merges*",
    "*.model",
    "config.json",
)


def _fetched(key: str, path: str, revision: str | None, gguf: str | None) -> Path:
    """The tokenizer's files from the hub, as they are now at that revision; from the hub's own cache when offline."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(path, revision=revision, allow_patterns=[*_HUB_FILES, *([gguf] if gguf else [])])
    except (OSError, ValueError) as error:  # what huggingface_hub raises for names, access, the network
        raise no_tokenizer(key, path, " ".join(str(error).split())[:300]) from None
    return Path(found)
