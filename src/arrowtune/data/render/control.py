"""Content that spells control tokens stays text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arrowtune.data.render.engine import Engine
from arrowtune.data.render.probe import TurnRules
from arrowtune.data.render.spans import Unproved
from arrowtune.data.render.template import ChatTemplate, Shape
from arrowtune.data.tokenizer import AddedToken


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a row's text.

    Attributes:
        text: The stretch.
        token: The id that it is, where it is a control token.
        ids: Its ids, where they were found already; None lets the engine encode it.
    """

    text: str
    token: int | None = None
    ids: tuple[int, ...] | None = None


class ControlText:
    """Finds and protects control tokens that content spells."""

    def __init__(self, engine: Engine, added: Sequence[AddedToken]) -> None:
        self._engine = engine
        self._texts = sorted((token.text for token in added), key=len, reverse=True)
        self._special = [token.text for token in added if token.special]
        self._find = re.compile("|".join(map(re.escape, self._texts)) or "(?!)")

    def at_end(self, text: str) -> str:
        """The longest added token that `text` ends with, or ""."""
        return next((token for token in self._texts if text.endswith(token)), "")

    def at_start(self, text: str) -> str:
        """The longest added token that `text` starts with, or ""."""
        return next((token for token in self._texts if text.startswith(token)), "")

    def learn(self, template: ChatTemplate, shape: Shape, rules: TurnRules) -> None:
        """Nothing yet."""

    def spelled(self, messages: Sequence[Mapping[str, Any]], tools: Any, kwargs: Mapping[str, Any]) -> bool:
        """Whether any string of the row spells a protected token."""
        return any(self._find.search(m["content"]) for m in messages if isinstance(m.get("content"), str))

    def cut(self, text: str, messages: Sequence[Mapping[str, Any]], tools: Any, kwargs: Mapping[str, Any], render: Callable[..., str]) -> tuple[Piece, ...]:
        """Pieces."""
        raise Unproved("control_text_unproved", "not kept apart")
