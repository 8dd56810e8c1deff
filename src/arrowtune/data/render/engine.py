"""The token engine: texts in, one flat buffer of ids out, with the place in the text where every token begins.

Two engines give the same bytes. The reference one is `tokenizers`, which reports offsets. The fast one is `fastokens`,
which reports none: there the byte length of every token of the vocabulary is known, so places are a running sum, and a
row whose sum is not its length in UTF-8 goes to the reference engine.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt

from arrowtune.data.render.open import byte_lengths, open_fast, open_reference
from arrowtune.data.tokenizer import AddedToken, TokenizerFiles

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

_SAMPLED_TEXTS, _SAMPLED_CHARACTERS = 16, 4000

DISAGREES = "it gives other ids than the reference engine for this tokenizer"
"""Why the fast engine is not used where the two were compared."""

NASTY = (
    "",
    " ",
    "\n",
    "  two  spaces\t\ttabs \r\n\r\n\n lines \n",
    "it's we'LL DON'T 1234567890 3.14 1,000,000",
    "def f(x):\n\treturn {'a': [1, 2]}  # ok\n\n\n\n",
    "größe Ångström ÅA\u030a e\u0301 ﬁ ½ ² Ⅷ",
    "日本語のテキスト、中文字符 한국어 العربية עברית ไทย हिन्दी",
    "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪👍🏽 \u200b\u200d\ufeff\u00a0\u2028\u3000x",
    "\x00\x01\x7f\x85 \ue000 \U0010ffff \ufffd",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 8,
    "<|im_start|>user\nhi<|im_end|>\n<think>\n\n</think>\n\n<s></s> [INST] <0x0A> ▁▁",
    "https://example.org/a?b=c&d=%20e#f <b>&amp;</b> \\u00fc \\n",
    " leading and trailing ",
)


@dataclass(frozen=True, slots=True)
class Ids:
    """Tokens of several texts, end to end.

    Attributes:
        ids: int32[t].
        offsets: int64[n + 1]; text k is `[offsets[k], offsets[k + 1])`.
        starts: int64[t]; the byte where each token begins, counted over all texts as if they were one.
        base: int64[n + 1]; the byte where each text begins.
        referred: How many texts went to the reference engine.
    """

    ids: Int32
    offsets: Int64
    starts: Int64
    base: Int64
    referred: int


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A stretch of a row's text.

    Attributes:
        text: The stretch.
        ids: int32[n], its tokens, where they are known; None leaves them to the engine.
        starts: int64[n], the byte of the stretch where each of those tokens begins.
    """

    text: str
    ids: Int32 | None = None
    starts: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def token(cls, text: str, token: int) -> Piece:
        """A stretch that is one token."""
        return cls(text, np.array([token], np.int32), np.zeros(1, np.int64))


class StillLoading(Exception):
    """An engine that is loading in another thread was asked for tokens."""


class Engine:
    """Encodes with added tokens and without special ones around.

    Args:
        files: The tokenizer.
        fast: Use the fast engine: True, False, or None for "where it can be and gives the reference's ids".
    """

    def __init__(self, files: TokenizerFiles, *, fast: bool | None = None) -> None:
        self._files = files
        self._wish = fast
        self._by_text = {token.text: token.id for token in files.added}
        self._loading: Thread | None = None
        self._sampled = fast is not None

    def load(self) -> Thread | None:
        """Begin to load the fast engine in a thread, so that this one can do something else meanwhile.

        Until `loaded` is called no text is encoded, and so no other thread is started: a process that has joined this one
        may be forked.

        Returns:
            The thread; None where there is no fast engine to load.
        """
        if self._wish is False:
            return None
        self._loading = Thread(target=lambda: self._opened, name="loading the token engine")
        self._loading.start()
        _ = self._lengths
        if self._wish is None:
            _ = self._expected
        return self._loading

    def loaded(self) -> None:
        """The thread of `load` has ended: use what it loaded."""
        self._loading = None

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The fast engine or None, and why there is none. Loading takes a second: it is done with the first text."""
        return open_fast(self._files)

    @cached_property
    def _choice(self) -> tuple[Any, str]:
        """The fast engine or None, and why it is not used."""
        if self._wish is False:
            return None, ""
        fast, reason = self._opened
        if self._wish is None and fast is not None and not self._agrees(fast):
            return None, DISAGREES
        return fast, reason

    @property
    def _fast(self) -> Any:
        return self._choice[0]

    @property
    def fast(self) -> bool:
        """Whether the fast engine is used.

        Raises:
            StillLoading: That is not known yet.
        """
        if self._loading is not None:
            raise StillLoading
        return self._choice[0] is not None

    @property
    def reason(self) -> str:
        """Why the fast engine is not used; empty where it is, or was not asked for."""
        return self._choice[1]

    @cached_property
    def _reference(self) -> Any:
        return open_reference(self._files)

    @cached_property
    def _plain(self) -> Any:
        """The reference engine without its added vocabulary."""
        return open_reference(self._files, added=False)

    @cached_property
    def _lengths(self) -> Int64:
        return byte_lengths(self._files)

    def encode(self, texts: Sequence[str]) -> Ids:
        """Encode texts as the tokenizer does, without the tokens that it adds around.

        Raises:
            UnicodeEncodeError: A text holds a lone surrogate.
            StillLoading: As `fast`.
        """
        sizes = np.array([len(text) if text.isascii() else len(text.encode()) for text in texts], np.int64)
        base = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        if self.fast and not self._sampled and texts:
            self._compare(texts)
        if not self.fast:
            return self._refer(texts, base)
        ids, offsets = self._flat_where_possible(texts)
        lengths = self._lengths[ids]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        wrong = np.flatnonzero(ends[offsets[1:]] - ends[offsets[:-1]] != sizes)
        if self._files.normalizer == "nfc":
            odd = [k for k, text in enumerate(texts) if not text.isascii() and not unicodedata.is_normalized("NFC", text)]
            wrong = np.union1d(wrong, np.array(odd, np.int64))
        if not len(wrong):
            return Ids(ids, offsets, ends[:-1], base, 0)
        return self._mend(texts, Ids(ids, offsets, ends[:-1], base, len(wrong)), wrong)

    def _flat_where_possible(self, texts: Sequence[str]) -> tuple[Int32, Int64]:
        """As `_flat`; a text that the fast engine refuses counts as empty here, so that its length does not add up."""
        try:
            return _flat(self._fast, texts)
        except ValueError:  # The vocabulary lacks a byte: the reference engine leaves it out, the fast one raises.
            return _flat(self._fast, [text if self._takes(text) else "" for text in texts])

    def _takes(self, text: str) -> bool:
        try:
            _flat(self._fast, [text])
        except ValueError:
            return False
        return True

    def encode_plain(self, text: str) -> Piece:
        """A text in which no added token is formed."""
        if self.fast and self._takes(text):
            ids = np.array(self._fast.encode_segments([(text, False)]).ids, np.int32)
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._lengths[ids])])
            if ends[-1] == len(text.encode()) and (text.isascii() or unicodedata.is_normalized("NFC", text)):
                return Piece(text, ids, ends[:-1])
        encoding = self._plain.encode(text, add_special_tokens=False)
        begins = np.array([start for start, _ in encoding.offsets], np.int64)
        return Piece(text, np.array(encoding.ids, np.int32), utf8_places(text)[begins])

    def forms(self, token: AddedToken) -> bool:
        """Whether a token of the added vocabulary comes of ordinary text of its spelling too."""
        ids = self.encode_plain(token.text).ids
        return ids is not None and ids.tolist() == [token.id]

    def falls_apart(self, left: str, right: str) -> bool:
        """Whether a text made of two is taken apart between them before any token is formed, and has the tokens of both."""
        cutter = self._reference.pre_tokenizer
        if self._files.alphabet != "bytes" or cutter is None:
            return False
        if all(start != len(left) for _, (start, _) in cutter.pre_tokenize_str(left + right)):
            return False
        texts = [left + right, left, right]
        whole, *parts = (encoding.ids for encoding in self._reference.encode_batch(texts, add_special_tokens=False))
        return bool(whole == [token for part in parts for token in part])

    def prefix(self) -> list[int]:
        """The tokens that the tokenizer puts before a text of its own accord, such as BOS."""
        tokenizer = open_reference(self._files, post_processor=True)
        with_them, without = (tokenizer.encode("a", add_special_tokens=flag).ids for flag in (True, False))
        at = next((k for k in range(len(with_them)) if with_them[k : k + len(without)] == without), 0)
        return list(with_them[:at])

    def token_id(self, text: str) -> int | None:
        """The id of an added or ordinary token by its text."""
        found = self._by_text.get(text)
        return found if found is not None else self._reference.token_to_id(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return str(self._reference.decode(list(ids), skip_special_tokens=False))

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of every single id, for people; bytes that are no whole character show as U+FFFD."""
        return [self.decode([token]) for token in ids]

    @cached_property
    def _expected(self) -> Ids:
        """What the reference engine makes of the texts that the engines are compared on."""
        texts = _compared(self._files)
        return self._refer(texts, np.zeros(len(texts) + 1, np.int64))

    def _agrees(self, fast: Any) -> bool:
        ids, offsets = _flat(fast, _compared(self._files))
        return np.array_equal(ids, self._expected.ids) and np.array_equal(offsets, self._expected.offsets)

    def _compare(self, texts: Sequence[str]) -> None:
        """Compare the engines on the first rows too, before anything is made of them; where they differ, use the reference."""
        self._sampled = True
        some = [text[:_SAMPLED_CHARACTERS] for text in texts[:_SAMPLED_TEXTS]]
        if not _same(self.encode(some), self._refer(some, np.zeros(len(some) + 1, np.int64))):
            self.__dict__["_choice"] = (None, DISAGREES)

    def _refer(self, texts: Sequence[str], base: Int64) -> Ids:
        encodings = self._reference.encode_batch(list(texts), add_special_tokens=False)
        counts = [len(encoding.ids) for encoding in encodings]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))])
        ids, starts = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.int64)
        for k, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            part = slice(offsets[k], offsets[k + 1])
            ids[part] = encoding.ids
            begins = np.array([start for start, _ in encoding.offsets], np.int64)
            starts[part] = base[k] + (begins if text.isascii() else utf8_places(text)[begins])
        return Ids(ids, offsets, starts, base, len(texts))

    def _mend(self, texts: Sequence[str], fast: Ids, wrong: Int64) -> Ids:
        """Replace some texts' tokens by the reference engine's."""
        picked = [texts[k] for k in wrong]
        slow = self._refer(picked, np.concatenate([fast.base[wrong], fast.base[-1:]]))
        counts = np.diff(fast.offsets)
        counts[wrong] = np.diff(slow.offsets)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        ids, starts = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.int64)
        mended = dict(zip(wrong.tolist(), range(len(wrong)), strict=True))
        for k in range(len(texts)):
            to = slice(offsets[k], offsets[k + 1])
            if (j := mended.get(k)) is not None:
                part = slice(slow.offsets[j], slow.offsets[j + 1])
                ids[to], starts[to] = slow.ids[part], slow.starts[part]
            else:
                part = slice(fast.offsets[k], fast.offsets[k + 1])
                ids[to] = fast.ids[part]
                starts[to] = fast.starts[part] - fast.starts[part.start] + fast.base[k] if part.start < part.stop else 0
        return Ids(ids, offsets, starts, fast.base, len(wrong))


def _same(one: Ids, other: Ids) -> bool:
    return np.array_equal(one.ids, other.ids) and np.array_equal(one.offsets, other.offsets)


def _compared(files: TokenizerFiles) -> list[str]:
    return [*NASTY, "".join(NASTY), *(f"a {token.text} b{token.text}c" for token in files.added[:64])]


def _flat(fast: Any, texts: Sequence[str]) -> tuple[Int32, Int64]:
    ids, offsets = fast.encode_batch_flat(list(texts), add_special_tokens=False)
    return np.frombuffer(ids, np.uint32).astype(np.int32), np.frombuffer(offsets, np.uint64).astype(np.int64)


def utf8_places(text: str) -> Int64:
    """int64[len(text) + 1]: the byte in UTF-8 where every character begins, and the end."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
