"""Which stretches of a render are trained.

The trained span of an assistant turn is all that the model must produce in it: from the end of the generation prompt to
the end-of-turn token inclusive. It comes from structure and is never found by searching for the content:

1. generation tags of the template, taken as they are;
2. the region that the template wrote while its loop held the message, opened by a generation prompt and closed by an
   end-of-turn token that probing has found (`turns`); some templates close a turn with nothing but the token that opens
   the next one, and then that is the end, and the last turn has none;
3. where the template shows no regions: the render of the conversation before the turn, with the generation prompt, and
   the render up to the turn, both of which must be prefixes of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from arrowtune.data.render.template import Marked, TemplateFailure
from arrowtune.data.render.turns import TurnRules
from arrowtune.types import Message

Span = tuple[int, int, float]
"""Start and end in characters of the render, and the loss weight."""
Stretch = tuple[int, int]


class Unproved(Exception):
    """The spans of a row could not be proved; `reason` is a code of `arrowtune.data.reasons`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def find_spans(
    marked: Marked,
    roles: Sequence[str],
    weights: Sequence[float],
    rules: TurnRules,
    prefix: Callable[[int, bool], str],
    results: Callable[[], Sequence[Stretch]],
) -> list[Span]:
    """The trained spans of a conversation, in order.

    Args:
        marked: The render.
        roles: The role of every message.
        weights: The loss weight of every message; 0 is context.
        rules: How turns begin and end.
        prefix: `prefix(n, open)` renders the first n messages, with the generation prompt if `open`.
        results: Where the template wrote the results of tools into turns; asked for where it does so.

    Raises:
        Unproved: No method can prove a span.
    """
    if rules.tagged:
        return _tagged_spans(marked, weights, rules)
    if not rules.structural:
        return [_prefix_span(marked.text, k, weight, rules, prefix) for k, weight in enumerate(weights) if weight]
    regions = _regions(marked, weights)
    spans: list[Span] = []
    for index, weight in enumerate(weights):
        if weight:
            if index not in regions:
                raise Unproved("spans_unproved", f"the template writes nothing for message {index}")
            start, end = regions[index]
            begin = opened(marked.text, start, end, rules, index > 0 and roles[index - 1] in rules.bare)
            if not (rules.swallows and index + 1 < len(roles) and roles[index + 1] == "tool"):
                spans.append((begin, _closed(marked.text, start, end, rules), weight))
            elif rules.apart:
                spans.extend((*part, weight) for part in _around_results(marked.text, begin, end, rules, results()))
            else:
                raise Unproved("spans_unproved", f"the template writes tool results into message {index}, which called them")
    return spans


def _regions(marked: Marked, weights: Sequence[float]) -> dict[int, Stretch]:
    """Where each trained message stands."""
    regions: dict[int, Stretch] = {}
    for index, start, end in marked.regions:
        if weights[index]:
            if index in regions:
                raise Unproved("spans_unproved", f"the template writes message {index} in several places")
            regions[index] = (start, end)
    return regions


def opened(text: str, start: int, end: int, rules: TurnRules, bare: bool) -> int:
    """Where the model begins to write inside a region.

    Args:
        text: The render.
        start: Where the region begins,
        end: and ends.
        rules: How turns begin.
        bare: The turn may begin with nothing.

    Raises:
        Unproved: It begins with no generation prompt.
    """
    for opening in rules.openings:
        if text.startswith(opening, start, end):
            return start + len(opening)
    if bare:
        return start
    raise Unproved("spans_unproved", "a turn does not begin with the generation prompt")


def _closed(text: str, start: int, end: int, rules: TurnRules) -> int:
    """The end of the end-of-turn token of a region; of the region itself where the template ends the last turn with nothing."""
    if rules.after:
        return end + next((len(token) for token in rules.ends if text.startswith(token, end)), 0)
    closing = end
    while closing > start and text[closing - 1].isspace():
        closing -= 1
    if text.endswith(rules.ends, start, closing):
        return closing
    raise Unproved("no_end_of_turn", "a trained turn does not end with an end-of-turn token")


def _around_results(text: str, start: int, end: int, rules: TurnRules, results: Sequence[Stretch]) -> Iterator[Stretch]:
    """The parts of a turn that the model wrote, where the template wrote the results of its calls in between."""
    inside = [(begin, close) for begin, close in results if start <= begin and close <= end]
    if not inside:
        raise Unproved("spans_unproved", "it is not plain where the template writes the results of the tools that a turn called")
    for begin, close in inside:
        if text[start:begin].strip():
            # What ends a call is written with the result, as the first token of it.
            yield start, begin + next((len(token) for token in rules.ends if text.startswith(token, begin)), 0)
            if not text.startswith(rules.ends, begin):
                raise Unproved("no_end_of_turn", "a call of a tool does not end with an end-of-turn token")
        start = close
    if text[start:end].strip():
        yield start, _closed(text, start, end, rules)


def _tagged_spans(marked: Marked, weights: Sequence[float], rules: TurnRules) -> list[Span]:
    """What the template tagged, less the white space that it writes after the end of the turn."""
    spans: list[Span] = []
    if not marked.regions:
        raise Unproved("spans_unproved", "the template does not show whose text its generation tags hold")
    for start, end in marked.generations:
        if start == end:
            continue
        owner = next((index for index, a, b in marked.regions if a <= start and end <= b), None)
        if owner is None and start >= marked.regions[-1][2]:  # behind the loop: the end of the text, after the last turn
            owner = marked.regions[-1][0]
        if owner is None:
            raise Unproved("spans_unproved", "a generation tag stands outside of the turns")
        if weights[owner]:
            closing = start + len(marked.text[start:end].rstrip())
            spans.append((start, closing if marked.text.endswith(rules.ends, start, closing) else end, weights[owner]))
    return spans


def _prefix_span(text: str, index: int, weight: float, rules: TurnRules, prefix: Callable[[int, bool], str]) -> Span:
    try:
        before, upto = prefix(index, True), prefix(index + 1, False)
    except TemplateFailure as failure:
        raise Unproved("spans_unproved", f"the template refuses a part of the conversation: {failure}") from None
    if not (text.startswith(upto) and upto.startswith(before)):
        raise Unproved("spans_unproved", "the render of a part of the conversation is not a part of its render")
    return len(before), _closed(text, len(before), len(upto), rules), weight


def everything(length: int, spans: Sequence[Span]) -> list[Span]:
    """All of a text as one span, but for stretches that have a weight of their own.

    Args:
        length: The length of the text.
        spans: Those stretches, in order; weight 0 is context.
    """
    found, at = [], 0
    for start, end, weight in (*spans, (length, length, 0.0)):
        found += [(at, start, 1.0), (start, end, weight)]
        at = end
    return [span for span in found if span[0] < span[1] and span[2]]


def message_weights(turns: Sequence[Message], *, last_only: bool) -> list[float]:
    """The loss weight of every message: its own where it has one, else what the policy says.

    Args:
        turns: The messages, an assistant turn last.
        last_only: Train the last assistant turn alone.
    """
    final = len(turns) - 1
    return [
        0.0 if turn.role != "assistant" else turn.weight if turn.weight is not None else float(not last_only or index == final)
        for index, turn in enumerate(turns)
    ]
