"""The base of every section of the run file: frozen, strict about names and types, documented by its attributes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the run file. It lives beside the code that reads it; `config.py` composes the parts.

    Values are never changed after construction, unknown keys are refused, and a string is not silently a number.
    """

    # Reading the docstrings of attributes takes a tenth of a second; `tools/make_docs.py` asks for them before it imports more.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
