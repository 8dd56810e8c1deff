"""Documents: the text between the tokenizer's own beginning and the end of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from arrowtune.data.render.control import literals
from arrowtune.data.render.cuts import stretches
from arrowtune.data.render.engine import Engine, Piece
from arrowtune.data.render.rows import Job, end_of_text, own_beginning
from arrowtune.data.render.spec import RenderSpec
from arrowtune.data.render.text import repair
from arrowtune.types import Document, Skip


class DocumentRows:
    """All tokens of a document are trained; special tokens that it spells are treated as `control_tokens_in_content` says.

    Args:
        spec: What to do.
        engine: The token engine.
    """

    def __init__(self, spec: RenderSpec, engine: Engine) -> None:
        self._engine = engine
        self._policy = spec.control_tokens_in_content
        self._prefix = own_beginning(engine)
        self._suffix = end_of_text(spec, engine)
        self._special = literals(token.text for token in spec.files.added if token.special)

    def job(self, item: Document, counts: Counter[str]) -> Job | Skip:
        """The row as text with one span; notes what it met in `counts`."""
        text = repair(item.text)
        if text != item.text:
            counts["repaired_text"] += 1
        for piece in self._suffix:
            text = text.removesuffix(piece.text)  # Whoever wrote the end of the text already does not get it twice.
        if not text:
            return Skip(item.origin, "empty", "the document is empty")
        as_is: Callable[[str], Piece] = Piece
        if self._special.search(text):
            counts["rows_with_control_text"] += 1
            if self._policy == "skip":
                return Skip(item.origin, "control_text")
            if self._policy == "text":
                as_is = self._engine.encode_plain
        pieces = (*self._prefix, *map(as_is, stretches(text, self._engine)), *self._suffix)
        whole = "".join(piece.text for piece in pieces)
        return Job(whole, [(0, len(whole), 1.0)], pieces)
