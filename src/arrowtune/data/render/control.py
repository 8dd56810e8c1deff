"""Content that spells control tokens stays text.

In what users, systems and tools say, and in the arguments of tools, no added token is formed. In what assistants say, no
special token and no marker of a turn is formed; other added tokens (`<think>`, `<tool_call>`) are, since the model must
produce them. Rows that spell no protected token, nearly all, cost one regular expression over their strings.

A row that does is rendered a second time with a private mark beside every protected literal. The marks say where in the
render the literals are; without them, that render must be the plain one. The render is then cut at the tokens that may
be formed, and what is between is encoded without an added vocabulary. The same cutting with every token formed must give
the ids of the tokenizer itself, or the row is not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from arrowtune.data.render.engine import Engine, Piece
from arrowtune.data.render.marks import free_points
from arrowtune.data.render.spans import Unproved
from arrowtune.data.tokenizer import AddedToken

_ANSWER_FIELDS = frozenset({"content", "reasoning_content", "thinking", "reasoning"})
Render = Callable[[Sequence[Mapping[str, Any]], Any, Mapping[str, Any]], str]


class ControlText:
    """Finds protected literals in rows, and cuts renders so that they stay text.

    Args:
        engine: The token engine.
        added: The added vocabulary.
        markers: Text in which the template opens and closes turns; the added tokens in it are markers.
    """

    def __init__(self, engine: Engine, added: Sequence[AddedToken], markers: str) -> None:
        self._engine = engine
        self._tokens = {token.text: token for token in added if token.text}
        self._markers = markers
        self._roles: set[str] = set()
        self._any: re.Pattern[str] | None = None
        # White space that got an id of its own is no control.
        listed = [token for token in self._tokens.values() if token.special or not token.text.isspace()]
        # Vocabulary that ordinary text may form has to be asked of the engine, which waits until a row spells a token.
        self._asked = not any(token.merged and not token.special for token in listed)
        self._protect(listed)

    def _protect(self, tokens: Sequence[AddedToken]) -> None:
        # Thoughts may be opened by the generation prompt, and are the model's to write all the same.
        marks = [token for token in tokens if token.special or (token.text in self._markers and "think" not in token.text)]
        self._protected = tokens
        self._everywhere = literals(token.text for token in tokens)
        self._in_answers = literals(token.text for token in marks)
        self._roles.clear()

    def _ask(self) -> None:
        """Leave out tokens that the engine forms of ordinary text too: forming them is no different."""
        if not self._asked:
            self._asked = True
            formed = self._engine.forms
            self._protect([token for token in self._protected if token.special or not token.merged or not formed(token)])

    def spelled(self, messages: Sequence[Mapping[str, Any]], tools: Any, kwargs: Mapping[str, Any]) -> bool:
        """Whether any string of a row spells a protected token."""
        if not self._spelled(messages, tools, kwargs):
            return False
        if self._asked:
            return True
        self._ask()
        return self._spelled(messages, tools, kwargs)

    def _spelled(self, messages: Sequence[Mapping[str, Any]], tools: Any, kwargs: Mapping[str, Any]) -> bool:
        everywhere, in_answers, roles = self._everywhere.search, self._in_answers.search, self._roles
        for message in messages:
            role = message["role"]
            if role not in roles:
                if everywhere(role):
                    return True
                roles.add(role)
            answer = role == "assistant"
            for key, value in message.items():
                if key == "role":
                    continue
                search = in_answers if answer and key in _ANSWER_FIELDS else everywhere
                if search(value) if type(value) is str else any(map(search, _strings(value))):
                    return True
        return any(map(everywhere, _strings(tools))) or any(map(everywhere, _strings(kwargs)))

    def cut(
        self,
        text: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Any,
        kwargs: Mapping[str, Any],
        render: Render,
        *,
        stop: int,
    ) -> tuple[Piece, ...]:
        """The pieces of a render in which protected literals stay text.

        Args:
            text: The render.
            messages: What was rendered: the turns,
            tools: the tools,
            kwargs: and the row's own template arguments.
            render: Renders the like.
            stop: The render counts up to here; no token crosses that place.

        Raises:
            Unproved: The literals cannot be told from the template's own tokens.
        """
        after, before = (chr(point) for point in free_points(text, 2))
        mark = _Marker(self._everywhere, after, before)
        lean = _Marker(self._in_answers, after, before)
        noted = render(
            [_marked_message(message, mark, lean) for message in messages],
            mark.value(tools),
            {key: mark.value(value) for key, value in kwargs.items()},
        )
        if not _same_without(after + before, noted, text):
            raise Unproved("control_text_unproved", "the template renders the conversation otherwise when control text is marked")
        text = text[:stop]
        found = list(self._matches(text))
        ids = [piece.ids for piece in self._pieces(text, found) if piece.ids is not None]
        if not np.array_equal(np.concatenate(ids), self._engine.encode([text]).ids):
            raise Unproved("control_text_unproved", "this tokenizer's added tokens cannot be cut out of a text")
        shielded = _shielded(noted, after, before, found, stop)
        return self._pieces(text, [match for match in found if match not in shielded])

    def _matches(self, text: str) -> Iterator[tuple[int, int]]:
        if self._any is None:
            self._any = literals(self._tokens)
        return (match.span() for match in self._any.finditer(text))

    def _pieces(self, text: str, formed: Sequence[tuple[int, int]]) -> tuple[Piece, ...]:
        pieces: list[Piece] = []
        at = 0
        for start, end in formed:
            token = self._tokens[text[start:end]]
            if token.lstrip:
                start = max(at, len(text[:start].rstrip()))
            if token.rstrip:
                end = len(text) - len(text[end:].lstrip())
            if start > at:
                pieces.append(self._engine.encode_plain(text[at:start]))
            pieces.append(Piece.token(text[start:end], token.id))
            at = end
        if at < len(text):
            pieces.append(self._engine.encode_plain(text[at:]))
        return tuple(pieces)


class _Marker:
    """Puts a mark beside every literal: after it, or before it where it ends its string.

    So a string still begins and ends with what it did, which is what templates test.
    """

    def __init__(self, pattern: re.Pattern[str], after: str, before: str) -> None:
        self._find, self._after, self._before = pattern, after, before

    def text(self, value: str) -> str:
        end = len(value.rstrip())
        return self._find.sub(lambda m: self._before + m[0] if m.end() >= end and m.start() > 0 else m[0] + self._after, value)

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value


def _marked_message(message: Mapping[str, Any], mark: _Marker, lean: _Marker) -> dict[str, Any]:
    answer = message["role"] == "assistant"
    return {key: (lean if answer and key in _ANSWER_FIELDS else mark).value(value) for key, value in message.items()}


def _same_without(marks: str, noted: str, text: str) -> bool:
    """Whether a text is another one with marks in it; makes no copy of either, which may be large."""
    at = start = 0
    for match in re.finditer(f"[{marks}]|$(?![\\s\\S])", noted):
        for begin in range(start, match.start(), _AT_ONCE):
            part = noted[begin : min(begin + _AT_ONCE, match.start())]
            if not text.startswith(part, at):
                return False
            at += len(part)
        start = match.end()
    return at == len(text)


_AT_ONCE = 1 << 20


def _shielded(noted: str, after: str, before: str, found: Sequence[tuple[int, int]], stop: int) -> set[tuple[int, int]]:
    """The matches that marks stand beside, up to a place."""
    by_start, by_end = {span[0]: span for span in found}, {span[1]: span for span in found}
    shielded = set()
    for shift, match in enumerate(re.finditer(f"[{after}{before}]", noted)):
        place = match.start() - shift
        if place > stop or (place == stop and match[0] == before):
            break
        span = by_end.get(place) if match[0] == after else by_start.get(place)
        if span is None:
            raise Unproved("control_text_unproved", "control text runs into the template's own")
        shielded.add(span)
    return shielded


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def literals(words: Iterable[str]) -> re.Pattern[str]:
    """A regular expression for the leftmost longest of many words; a trie, since alternatives are tried one by one."""
    trie: dict[str, Any] = {}
    for word in words:
        node = trie
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}
    return re.compile(_trie_source(trie) if trie else "(?!)")


def _trie_source(node: dict[str, Any]) -> str:
    run = ""
    while len(node) == 1 and "" not in node:
        ((letter, node),) = node.items()
        run += re.escape(letter)
    branches = [re.escape(letter) + _trie_source(child) for letter, child in node.items() if letter]
    if not branches:
        return run
    return f"{run}(?:{'|'.join(branches)}){'?' if '' in node else ''}"
