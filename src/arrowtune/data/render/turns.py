"""Where a template begins and ends assistant turns, found out by rendering small conversations.

Everything here runs once per template and set of arguments. The questions: with what text does inference open an assistant
turn, how much of that do turns in the middle of a conversation begin with, and what token ends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arrowtune.data.render.probe import ARGUMENTS, SYSTEM, TOOL, TOOLS, USER, call_of, try_render
from arrowtune.data.render.template import ChatTemplate, Marked, Shape
from arrowtune.data.tokenizer import AddedToken
from arrowtune.types import Message

_ANSWERS = ("Alpha", "Zulu", "7even")
_QUESTIONS = (USER.content, "Nemo?", "4our?")


@dataclass(frozen=True, slots=True)
class TurnRules:
    """How an assistant turn begins and ends in a template's output.

    Attributes:
        openings: What an assistant turn begins with and the model does not write, longest first: the text with which
            inference has it answer, or as much of that as turns begin with elsewhere in a conversation.
        ends: The tokens that may end a turn.
        bare: The roles after which inference writes nothing and the model opens its turn itself.
        after: The end follows the text of the turn, as the token that opens the next one; after the last turn there is none.
        swallows: The template writes the results of tools into the turn that called them. What ends a call there is what
            the template writes after a call that has no result yet.
        apart: Where it does so, a round of a loop inside of its loop writes a result and nothing that the model said.
        structural: Marks show where the turns are; else only prefixes can.
        tagged: The template has generation tags, which are taken as they are.
    """

    openings: tuple[str, ...]
    ends: tuple[str, ...]
    bare: frozenset[str]
    after: bool
    swallows: bool
    apart: bool
    structural: bool
    tagged: bool


class TurnProbe:
    """Asks a template about its turns.

    Args:
        template: The template.
        shape: How it takes messages.
        kwargs: Arguments of the rows that the rules are for.
        added: The added vocabulary, longest texts first: what may end a turn.
    """

    def __init__(self, template: ChatTemplate, shape: Shape, kwargs: Mapping[str, Any], added: Sequence[AddedToken]) -> None:
        self._template, self._shape, self._kwargs, self._added = template, shape, kwargs, added

    def rules(self) -> TurnRules:
        """How turns begin and end."""
        prompts: set[str] = set()
        bare: set[str] = set()
        structural, tagged = False, False
        for turns, tools in _openings():
            full = self.render([*turns, Message("assistant", "Alpha")], tools)
            if full is None:
                continue
            tagged = tagged or bool(full.generations)
            prompt = self.render(turns, tools, open_turn=True)
            region = _region(full, len(turns))
            if region is None or prompt is None:
                continue
            structural = True
            start = region[0]
            if prompt.text[:start] == full.text[:start]:
                opening = prompt.text[start:]
                prompts.add(opening)
                if not opening:
                    bare.add(turns[-1].role)
        ends, after = self._ends()
        call_ends, swallows = self._call_ends(after)
        return TurnRules(
            openings=_longest((prompts - {""}) | self._shorter_openings(prompts - {""})),
            ends=_longest(ends | call_ends),
            bare=frozenset(bare),
            after=after,
            swallows=swallows,
            apart=swallows and self._apart(),
            structural=structural,
            tagged=tagged,
        )

    def render(self, turns: Sequence[Message], tools: Any = None, *, open_turn: bool = False) -> Marked | None:
        """The render of turns; None where the template refuses them."""
        return try_render(self._template, self._shape, turns, tools=tools, kwargs=self._kwargs, open_turn=open_turn)

    def _ends(self) -> tuple[set[str], bool]:
        """The tokens that end turns, and whether they follow the turn; where some turns have their own, those alone count."""
        inside: set[str] = set()
        behind: set[str] = set()
        for full, (start, end) in self._answers():
            closed = full.text[start:end].rstrip()
            if token := next((token.text for token in self._added if closed.endswith(token.text)), None):
                inside.add(token)
            elif token := self._token_at(full.text, end):
                behind.add(token)
        return inside or behind, bool(behind) and not inside

    def _call_ends(self, after: bool) -> tuple[set[str], bool]:
        """The special tokens that end calls of tools, and whether the results of the tools are written before them."""
        ends: set[str] = set()
        swallows = False
        for content in ("", None):
            full = self.render([USER, call_of(content, ARGUMENTS), TOOL], TOOLS)
            for index, start, end in full.regions if full is not None else ():
                written = full.text[start:end].rstrip() if full is not None and index == 1 else ""
                if str(TOOL.content) in written:
                    swallows = True
                    ends |= self._hand_over(content)
                elif written:
                    ends.update(token.text for token in self._added if token.special and written.endswith(token.text))
                    if after and full is not None and (token := self._token_at(full.text, end)):
                        ends.add(token)
        return ends, swallows

    def _apart(self) -> bool:
        """Whether what stands around a result in the calling turn holds nothing of the call."""
        for content in ("", None):
            full = self.render([USER, call_of(content, ARGUMENTS), TOOL], TOOLS)
            if full is None:
                continue
            texts = [full.text[start:end] for start, end in full.stretches]
            results = [text for text in texts if str(TOOL.content) in text]
            said = str(ARGUMENTS["city"])
            if len(results) != 1 or said in results[0] or said not in full.text.replace(results[0], ""):
                return False
        return True

    def _hand_over(self, content: str | None) -> set[str]:
        """The special token with which a call ends that has no result."""
        full = self.render([USER, call_of(content, ARGUMENTS)], TOOLS)
        region = _region(full, 1) if full is not None else None
        written = full.text[slice(*region)].rstrip() if full is not None and region is not None else ""
        return {token.text for token in self._added if token.special and written.endswith(token.text)}

    def _token_at(self, text: str, place: int) -> str | None:
        return next((token.text for token in self._added if text.startswith(token.text, place)), None)

    def _shorter_openings(self, prompts: set[str]) -> set[str]:
        """What turns begin with where it is not the whole generation prompt."""
        headers, asked = self._headers("assistant"), self._headers("user")
        found = set()
        for header in headers:
            if any(header.startswith(prompt) for prompt in prompts):
                continue
            inside = [header.find(prompt) + len(prompt) for prompt in prompts if prompt in header]
            if inside:  # other text comes before it, such as BOS
                found.add(header[: min(inside)])
                continue
            shared = max((self._shared(header, prompt) for prompt in prompts), key=len, default="")
            told = bool(shared.strip()) and not any(other.startswith(shared) for other in asked)
            found.add(shared if told else header)
        return found

    def _shared(self, header: str, prompt: str) -> str:
        """The longest common beginning of two texts that cuts no added token of the second in two."""
        length, at = len(common_prefix([header, prompt])), 0
        while at < length:
            token = self._token_at(prompt, at)
            if token is not None and at + len(token) > length:
                return prompt[:at]
            at += 1 if token is None else len(token)
        return prompt[:length]

    def _headers(self, role: str) -> set[str]:
        """What the turns of a role begin with, whatever is said in them."""
        found: set[str] = set()
        answer = role == "assistant"
        # Conversations that begin with an answer too: there the header may follow the beginning of the text.
        before: list[tuple[list[Message], Any]] = [([], None), ([SYSTEM], None)]
        for turns, tools in [*before, *_openings()] if answer else before:
            texts = []
            for said in _ANSWERS if answer else _QUESTIONS:
                then = [USER, Message("assistant", "Omega")] if answer else [Message("assistant", "Omega")]
                full = self.render([*turns, Message(role, said), *then], tools)
                if full is not None and (region := _region(full, len(turns), own=role)) is not None:
                    texts.append(full.text[region[0] : region[1]])
            if len(texts) == len(_ANSWERS):
                found.add(common_prefix(texts))
        return {header for header in found if header.strip()}

    def _answers(self) -> Iterator[tuple[Marked, tuple[int, int]]]:
        """Plain assistant turns, the last one and earlier ones, with the renders they stand in."""
        for turns, tools in _openings():
            for after in ([], [USER, Message("assistant", "7even")], [USER]):
                full = self.render([*turns, Message("assistant", "Alpha"), *after], tools)
                if full is None:
                    continue
                region = _region(full, len(turns))
                if not full.regions:  # nothing is marked: the turn is what prefixes leave
                    before = self.render(turns, tools, open_turn=True)
                    upto = self.render([*turns, Message("assistant", "Alpha")], tools)
                    if before is not None and upto is not None and upto.text.startswith(before.text):
                        region = len(before.text), len(upto.text)
                if region is not None:
                    yield full, region


def opening_text(template: ChatTemplate, shape: Shape, rules: TurnRules) -> str:
    """Text that holds every token with which the template opens and closes turns."""
    asked = try_render(template, shape, [SYSTEM, USER]) or try_render(template, shape, [USER])
    shared = common_prefix(rules.openings) if rules.openings else ""
    return "\0".join([asked.text if asked else "", shared, *rules.ends])


def _longest(texts: set[str]) -> tuple[str, ...]:
    return tuple(sorted(texts, key=lambda text: (-len(text), text)))


def _openings() -> Iterator[tuple[list[Message], Any]]:
    """Conversations after which the model has to answer."""
    answer = Message("assistant", "Zulu")
    for start in ([], [SYSTEM]):
        yield [*start, USER], None
        yield [*start, USER, answer, USER], None
        for content in ("", None):
            yield [*start, USER, call_of(content, ARGUMENTS), TOOL], TOOLS
    yield [USER], TOOLS


def common_prefix(texts: Sequence[str]) -> str:
    """The longest text that all begin with."""
    length = next((k for k, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1), min(map(len, texts)))
    return texts[0][:length]


def _region(marked: Marked, index: int, own: str = "assistant") -> tuple[int, int] | None:
    """The region of a turn; None where there is no single one, or where it holds what others said."""
    regions = [(start, end) for message, start, end in marked.regions if message == index]
    others = [str(turn.content) for turn in (USER, SYSTEM, TOOL) if turn.role != own]
    if len(regions) != 1 or any(said in marked.text[slice(*regions[0])] for said in others):
        return None
    return regions[0]
