"""Opening the two token engines, and what is known of the tokens of the fast one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from arrowtune.data.fast import load_fast
from arrowtune.data.tokenizer import TokenizerFiles

_UNKNOWN = -(1 << 40)
"""The length of a token that does not spell its bytes: no row that holds one can add up."""


def open_fast(files: TokenizerFiles) -> tuple[Any, str]:
    """The fast engine, which takes more than a second to load; or None, and why there is none."""
    if files.alphabet == "other" or files.normalizer == "other":
        return None, "its tokens do not spell the bytes of the text"
    try:
        return load_fast(str(files.json_path)), ""
    except ImportError:
        return None, "the package fastokens is not installed"
    except Exception as error:  # noqa: BLE001 - the engine refuses tokenizers that it does not know, each in its own way
        return None, f"fastokens cannot load this tokenizer: {error}"


def open_reference(files: TokenizerFiles, *, added: bool = True, post_processor: bool = False) -> Any:
    """The reference engine.

    Args:
        files: The tokenizer.
        added: With the added vocabulary.
        post_processor: With the tokens that it puts around a text.
    """
    import tokenizers

    if added:
        tokenizer = tokenizers.Tokenizer.from_file(str(files.json_path))
    else:
        tree = json.loads(files.json_path.read_bytes())
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps({**tree, "added_tokens": []}))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if not post_processor:
        # A post-processor may trim spaces off the offsets it reports; a token must begin where its bytes begin.
        tokenizer.post_processor = tokenizers.processors.Sequence([])
    return tokenizer


def byte_lengths(files: TokenizerFiles) -> npt.NDArray[np.int64]:
    """int64[vocabulary]: how many bytes of the text every token covers. For tokenizers that `open_fast` opens."""
    lengths = np.full(files.vocab_size, _UNKNOWN, np.int64)
    vocabulary = files.vocabulary()
    spell = len if files.alphabet == "bytes" else _piece_length
    lengths[np.fromiter(vocabulary.values(), np.int64, len(vocabulary))] = list(map(spell, vocabulary))
    for entry in files.added:
        # A token of nothing but U+2581 spells spaces far more often than that letter.
        if not (entry.merged and files.alphabet == "pieces" and not entry.text.strip("\u2581")):
            lengths[entry.id] = len(entry.text.encode())
    unknown = files.special_tokens.get("unk_token")
    by_text = {entry.text: entry.id for entry in files.added}
    if unknown is not None and (token := by_text.get(unknown, vocabulary.get(unknown))) is not None:
        lengths[token] = _UNKNOWN
    return lengths


def _piece_length(piece: str) -> int:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return 1
    return len(piece.replace("\u2581", " ").encode())
