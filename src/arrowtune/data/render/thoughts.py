"""Reasoning inside trained turns: where it begins and ends, so that it can be left out of what is trained.

Two things can be made context: the reasoning of a turn with all that a template puts around it, and the empty block that
some templates write where there is none. Neither is found by searching. A row is rendered a second time with private
marks around its reasoning; without them that render must be the plain one, and around them must stand what the template
was seen to put around the reasoning of small conversations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from arrowtune.data.render.marks import free_points
from arrowtune.data.render.probe import ARGUMENTS, TOOL, TOOLS, USER, call_of
from arrowtune.data.render.spans import Span, Unproved, opened
from arrowtune.data.render.template import join_parts
from arrowtune.data.render.turns import TurnProbe, TurnRules, common_prefix
from arrowtune.types import Message

_REASONING = "Omicron"
_ANSWERS = ("Alpha", "Zulu", "7even")
_OPEN, _CLOSE = "<think>", "</think>"
"""How thoughts are spelled that a data set keeps inside the content of its answers."""
_EMPTY_PAIR = re.compile(r"\s*(?:<([^<>/]+)>\s*)?</[^<>]+>\s*")

Render = Callable[[Sequence[Message]], str]


@dataclass(frozen=True, slots=True)
class ThoughtRules:
    """What a template puts around reasoning.

    Attributes:
        openers: What stands between the opening of a turn and its reasoning.
        closing: What stands between the reasoning and the answer or the call of a tool; None where it was never seen.
        empties: What the template writes at the start of turns that have no reasoning, longest first.
    """

    openers: frozenset[str]
    closing: str | None
    empties: tuple[str, ...]


def find_thoughts(probe: TurnProbe, rules: TurnRules) -> ThoughtRules:
    """Probe what stands around reasoning.

    Args:
        probe: Asks the template.
        rules: How its turns begin and end.
    """
    openers: set[str] = set()
    closings: list[str] = []
    for thinking, plain in _turns_that_reason(probe, rules):
        opener, found, rest = thinking.partition(_REASONING)
        if found:
            openers.add(opener)
            closings.append(rest)
            # Where turns without reasoning begin at once with what is said, nothing of that closes reasoning.
            if plain and rest.endswith(plain) and rest != plain and not _EMPTY_PAIR.match(plain):
                closings.append(rest.removesuffix(plain))
    closing = common_prefix(closings) if closings else None
    for opening in rules.openings if closing is not None else ():
        closing = closing.partition(opening)[0] if closing is not None else None
    told = (closing or "").strip()
    empties = {
        empty for empty in _beginnings(probe, rules) if (told and told in empty) or (empty and _EMPTY_PAIR.fullmatch(empty))
    }
    return ThoughtRules(frozenset(openers), closing, tuple(sorted(empties, key=lambda text: (-len(text), text))))


def _turns_that_reason(probe: TurnProbe, rules: TurnRules) -> Iterator[tuple[str, str]]:
    """What the model writes in a last turn with reasoning, and in the same turn without."""
    answers = [Message("assistant", said, reasoning=_REASONING) for said in _ANSWERS]
    calls = [call_of(content, ARGUMENTS, _REASONING) for content in ("", None)]
    for before in ([USER], [USER, call_of("", ARGUMENTS), TOOL]):
        for turn in (*answers, *calls):
            for thinking in _written(probe, rules, [*before, turn]):
                yield thinking, next(_written(probe, rules, [*before, replace(turn, reasoning=None)]), "")


def _beginnings(probe: TurnProbe, rules: TurnRules) -> Iterator[str]:
    """What turns without reasoning begin with, whatever is said in them."""
    calls = [USER, call_of("", ARGUMENTS), TOOL]
    for before, after in (([USER], []), ([USER], [USER, Message("assistant", "Omega")]), (calls, [])):
        texts: list[str] = []
        for said in _ANSWERS:
            turns = [*before, Message("assistant", said), *after]
            texts += _written(probe, rules, turns, len(before))
        if len(texts) == len(_ANSWERS):
            yield common_prefix(texts)


def _written(probe: TurnProbe, rules: TurnRules, turns: Sequence[Message], index: int = -1) -> Iterator[str]:
    """What the model writes in one turn of a small conversation; nothing where that is not plain."""
    index %= len(turns)
    tools = TOOLS if TOOL in turns or turns[-1].tool_calls else None
    full = probe.render(turns, tools)
    if full is None:
        return
    if not full.regions:  # nothing is marked: the turn is what prefixes leave
        before = probe.render(turns[:index], tools, open_turn=True)
        if before is not None and index == len(turns) - 1 and full.text.startswith(before.text):
            yield full.text[len(before.text) :]
    for message, start, end in full.regions:
        if message == index:
            if tagged := [tag for tag in full.generations if start <= tag[0] < tag[1] <= end]:
                yield full.text[tagged[0][0] : end]
                return
            with suppress(Unproved):
                yield full.text[opened(full.text, start, end, rules, turns[index - 1].role in rules.bare) : end]


def leave_out(
    spans: Sequence[Span],
    text: str,
    turns: Sequence[Message],
    rules: ThoughtRules,
    render: Render,
    *,
    reasoning: bool,
    empty: bool,
) -> list[Span]:
    """The spans without reasoning, without empty blocks, or without both.

    Args:
        spans: The trained spans of a row.
        text: Its render.
        turns: What was rendered.
        rules: What the template puts around reasoning.
        render: Renders the like.
        reasoning: Leave the reasoning out.
        empty: Leave empty blocks of reasoning out.

    Raises:
        Unproved: The end of some reasoning is not plain.
    """
    holes = _holes(spans, text, turns, rules, render) if reasoning else {}
    kept: list[Span] = []
    for start, end, weight in spans:
        parts = [(start, end)]
        if start in holes:
            parts = [(start, holes[start][0]), (holes[start][1], end)]
        elif empty:
            block = next((block for block in rules.empties if text.startswith(block, start, end)), "")
            parts = [(start + len(block), end)]
        kept.extend((a, b, weight) for a, b in parts if a < b)
    return kept


def _holes(
    spans: Sequence[Span], text: str, turns: Sequence[Message], rules: ThoughtRules, render: Render
) -> dict[int, tuple[int, int]]:
    """Where the reasoning inside of spans begins and ends, by the spans' starts."""
    if not any(turn.role == "assistant" and _thinks(turn) for turn in turns):
        return {}
    marks = "".join(map(chr, free_points(text, 4)))
    noted = render([_noted(turn, marks) for turn in turns])
    if re.sub(f"[{marks}]", "", noted) != text:
        raise Unproved("reasoning_unproved", "the template renders the conversation otherwise when reasoning is marked")
    found = [(match[0], match.start() - shift) for shift, match in enumerate(re.finditer(f"[{marks}]", noted))]
    holes: dict[int, tuple[int, int]] = {}
    for (opens, begin), (closes, end) in zip(found[::2], found[1::2], strict=True):
        if opens + closes not in (marks[:2], marks[2:]):
            raise Unproved("reasoning_unproved", "the template cuts reasoning in two")
        span = next((span for span in spans if span[0] <= begin <= span[1]), None)
        if span is not None:
            inline = opens == marks[2]
            if span[0] in holes:
                raise Unproved("reasoning_unproved", "the template writes reasoning twice")
            holes[span[0]] = _begun(text, span[0], begin, rules, inline), _closed(text, end, rules, inline)
    return holes


def _thinks(turn: Message) -> bool:
    return bool(turn.reasoning and turn.reasoning.strip()) or _in_content(turn)


def _in_content(turn: Message) -> bool:
    """Whether an answer holds its thought inside of its content."""
    content = turn.content if isinstance(turn.content, str) else join_parts(turn.content or ())
    return _CLOSE in content or content.lstrip().startswith(_OPEN)


def _noted(turn: Message, marks: str) -> Message:
    """The turn with marks around its reasoning: the first two around a field of its own, the others inside of content."""
    if turn.role != "assistant" or not _thinks(turn):
        return turn
    if not _in_content(turn):
        return replace(turn, reasoning=_around(turn.reasoning or "", marks[:2]))
    if not isinstance(turn.content, str) or turn.content.count(_CLOSE) != 1 or turn.reasoning:
        raise Unproved("reasoning_unproved", "it is not plain where the thought in an answer ends")
    thought, _, said = turn.content.partition(_CLOSE)
    before, tag, thought = thought.rpartition(_OPEN)
    if before.strip() or not thought.strip():
        raise Unproved("reasoning_unproved", "an answer holds a thought that is empty or does not come first")
    return replace(turn, content=f"{before}{tag}{_around(thought, marks[2:])}{_CLOSE}{said}")


def _around(thought: str, marks: str) -> str:
    """A thought with marks around it, inside of its white space, which templates may strip."""
    body = thought.strip()
    start = thought.find(body)
    return f"{thought[:start]}{marks[0]}{body}{marks[1]}{thought[start + len(body) :]}"


def _begun(text: str, start: int, place: int, rules: ThoughtRules, inline: bool) -> int:
    """Where the block begins whose reasoning begins at a place: with the span, or with the thought's own tag."""
    before = text[start:place].rstrip()
    if any(before == opener.rstrip() for opener in rules.openers) or not before:
        return start
    if inline and before.endswith(_OPEN):
        return start + len(before) - len(_OPEN)
    raise Unproved("reasoning_unproved", "a trained turn does not begin with its reasoning")


def _closed(text: str, place: int, rules: ThoughtRules, inline: bool) -> int:
    """The end of what closes reasoning whose last letter stands before a place."""
    length = len(text) - len(text[place:].lstrip())
    for at in range(place, length + 1):
        if rules.closing is not None and text.startswith(rules.closing, at):
            return at + len(rules.closing)
    if inline and text.startswith(_CLOSE, length):
        rest = text[length + len(_CLOSE) :]
        return len(text) - len(rest.lstrip())
    raise Unproved("reasoning_unproved", "reasoning is not followed by what the template closes it with")
