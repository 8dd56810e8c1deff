"""One JSON text to one record: orjson first, the standard library where orjson refuses (NaN, lone surrogates) or rounds."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from arrowtune.types import Record

_SHORT = 512
_LARGE = re.compile(rb"[0-9]{19}")
_KINDS = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}


def decode(text: bytes, *, careful: bool) -> tuple[Record | None, str]:
    """The record of a JSON text, or None and what is wrong with it. The reason never quotes the text.

    Args:
        text: The text.
        careful: Whether it was not ruled out that orjson would round an integer of it; see `may_round`.
    """
    try:
        if careful and may_round(text):
            raise ValueError
        value = orjson.loads(text)
    except ValueError:
        try:
            value = json.loads(text.decode())
        except UnicodeDecodeError as error:
            return None, f"not UTF-8 at byte {error.start}"
        except json.JSONDecodeError as error:
            return None, f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:].removesuffix(' at')} at character {error.pos}"
        except RecursionError:
            return None, "nested too deeply"
        except ValueError as error:
            return None, f"not valid JSON: {error}"
    return as_record(value)


def may_round(text: bytes) -> bool:
    """Whether there is an integer that orjson would round to a float; now and then True where there is none."""
    if len(text) < _SHORT:
        return _LARGE.search(text) is not None
    return len(_long_numbers(text)) > 0


def lines_that_may_round(data: bytes) -> frozenset[int]:
    """The lines, counted from 0, of which `may_round` may be true: all at once, since most text has long numbers somewhere."""
    if not len(places := _long_numbers(data)):
        return frozenset()
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    return frozenset(np.searchsorted(ends, places).tolist())


def _long_numbers(text: bytes) -> npt.NDArray[np.int64]:
    """A place within every integer of 19 digits or more, and some others.

    Such an integer covers three neighbours of every sixth byte: looking at those takes a tenth of the time of reading
    every byte.
    """
    digits = (np.frombuffer(text, np.uint8)[::6] - ord("0")) < 10
    return 6 * np.flatnonzero(digits[:-2] & digits[1:-1] & digits[2:])


def as_record(value: Any) -> tuple[Record | None, str]:
    """A decoded value as a row: only an object is one."""
    if isinstance(value, dict):
        return value, ""
    return None, f"the row is {_KINDS.get(type(value), type(value).__name__)}, not an object"


def is_json(text: bytes) -> bool:
    """Whether the bytes are one JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
