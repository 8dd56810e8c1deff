"""One row at a time: a conversation or completion becomes a `Job`, text with trained spans, ready for the token engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from arrowtune.data.render.control import ControlText, literals
from arrowtune.data.render.cuts import head
from arrowtune.data.render.engine import Engine, Piece
from arrowtune.data.render.environment import variables_of
from arrowtune.data.render.probe import find_shape
from arrowtune.data.render.results import result_stretches
from arrowtune.data.render.spans import Span, Stretch, Unproved, everything, find_spans, message_weights
from arrowtune.data.render.spec import RenderSpec
from arrowtune.data.render.template import ChatTemplate, Marked, TemplateFailure, shape_message
from arrowtune.data.render.text import repair, repair_conversation
from arrowtune.data.render.thoughts import ThoughtRules, find_thoughts, leave_out
from arrowtune.data.render.turns import TurnProbe, TurnRules, opening_text
from arrowtune.errors import RenderError
from arrowtune.types import Completion, Conversation, Message, Origin, Skip

_MOST_RULES = 256
"""How many different sets of template arguments are remembered: rows may each have their own."""


@dataclass(frozen=True, slots=True)
class Job:
    """A row ready for the token engine.

    Attributes:
        text: The render.
        pieces: The same text in pieces, some of them encoded already; None where it is one piece for the engine.
        spans: The trained stretches.
    """

    text: str
    spans: list[Span]
    pieces: tuple[Piece, ...] | None = None


class ChatRows:
    """Conversations through the chat template.

    Args:
        spec: What to do.
        engine: The token engine.

    Raises:
        RenderError: There is no template, or it is not valid.
    """

    def __init__(self, spec: RenderSpec, engine: Engine) -> None:
        source = spec.files.chat_template
        if source is None:
            raise RenderError(
                f"the tokenizer in {spec.files.folder} has no chat template",
                hint="give one with tokenizer.chat_template: a .jinja file, or the template itself",
            )
        self._spec, self._engine = spec, engine
        self._everything = spec.train_on == "everything"
        self._whole_turns = self._everything or (spec.train_on_reasoning and spec.train_on_boilerplate)
        self._template = ChatTemplate(source, spec.files.special_tokens, spec.template_kwargs, spec.date)
        self._shape = find_shape(self._template)
        self._added = sorted((token for token in spec.files.added if token.text), key=lambda token: -len(token.text))
        self._rules: dict[str, TurnRules] = {}
        self._thoughts: dict[str, ThoughtRules] = {}
        self._source = source
        markers = opening_text(self._template, self._shape, self._rules_for({}))
        self._control = ControlText(engine, spec.files.added, markers)

    def job(self, item: Conversation, counts: Counter[str]) -> Job | Skip:
        """The row as text with spans; notes what it met in `counts`."""
        own: Counter[str] = Counter()
        try:
            try:
                return self._job(item, own)
            except UnicodeEncodeError:  # a lone surrogate, which a JSON escape can hold and UTF-8 cannot
                own.clear()  # The row is rendered again, and what is met is met again.
                own["repaired_text"] += 1
                return self._job(repair_conversation(item), own)
        except UnicodeEncodeError:
            return Skip(item.origin, "template_error", "the template itself writes a lone surrogate")
        except TemplateFailure as failure:
            return Skip(item.origin, "template_error", str(failure))
        except Unproved as failure:
            return Skip(item.origin, failure.reason, failure.detail)
        finally:
            counts.update(own)

    def _job(self, item: Conversation, counts: Counter[str]) -> Job | Skip:
        turns = self._turns(item, counts)
        if isinstance(turns, Skip):
            return turns
        weights = message_weights(turns, last_only=self._spec.train_on == "last_assistant_message")
        if not any(weights) and not self._everything:
            return Skip(item.origin, "no_trained_tokens", "no turn is trained")
        messages = [shape_message(turn, self._shape, counts) for turn in turns]
        tools, kwargs = item.tools, item.template_kwargs
        marked = self._template.render(messages, tools, kwargs)
        if not marked.text.isascii():
            marked.text.encode()
        self._notice(turns, marked, counts)
        spans = self._spans(item, turns, messages, weights, marked, counts)
        if not spans:
            return Skip(item.origin, "no_trained_tokens", "what is trained of the turns is empty")
        text = head(marked.text, self._engine, self._spec)
        if len(text) < len(marked.text):
            spans = [(start, min(stop, len(text)), weight) for start, stop, weight in spans if start < len(text)]
        if not self._control.spelled(messages, tools, kwargs):
            return Job(text, spans)
        counts["rows_with_control_text"] += 1
        if self._spec.control_tokens_in_content == "skip":
            return Skip(item.origin, "control_text")
        if self._spec.control_tokens_in_content == "allow":
            return Job(text, spans)
        return Job(text, spans, self._control.cut(marked.text, messages, tools, kwargs, self._text, stop=len(text)))

    def _spans(
        self,
        item: Conversation,
        turns: Sequence[Message],
        messages: Sequence[Mapping[str, Any]],
        weights: Sequence[float],
        marked: Marked,
        counts: Counter[str],
    ) -> list[Span]:
        """The trained spans of a rendered row."""
        tools, kwargs, text = item.tools, item.template_kwargs, marked.text

        def part(count: int, opened: bool) -> str:
            return self._template.render(messages[:count], tools, kwargs, add_generation_prompt=opened).text

        def again(noted: Sequence[Message]) -> Marked:
            return self._template.render([shape_message(turn, self._shape, {}) for turn in noted], tools, kwargs)

        @cache
        def results() -> list[Stretch]:
            return result_stretches(marked, turns, again)

        roles = [turn.role for turn in turns]
        if self._everything:
            own = [k + 1.0 if turn.role == "assistant" and turn.weight is not None else 0.0 for k, turn in enumerate(turns)]
            found = find_spans(marked, roles, own, self._rules_for(kwargs), part, results) if any(own) else []
            return everything(len(text), [(start, end, weights[int(place) - 1]) for start, end, place in found])
        rules = self._rules_for(kwargs)
        spans = find_spans(marked, roles, weights, rules, part, results)
        if rules.after and not all(text.endswith(rules.ends, start, end) for start, end, _ in spans):
            counts["open_ended"] += 1
        if self._whole_turns:
            return spans
        leave = {"reasoning": not self._spec.train_on_reasoning, "empty": not self._spec.train_on_boilerplate}
        return leave_out(spans, text, turns, self._thoughts_for(kwargs), lambda noted: again(noted).text, **leave)

    def _notice(self, turns: Sequence[Message], marked: Marked, counts: Counter[str]) -> None:
        """Find out that the template leaves a field of an answer out.

        Raises:
            Unproved: It leaves out calls of tools: what would be trained is an empty answer.
        """
        if not self._shape.reasoning and any(turn.reasoning for turn in turns):
            counts["reasoning_ignored"] += 1
        if not any(turn.tool_calls for turn in turns):
            return
        for index, start, end in marked.regions:
            for call in turns[index].tool_calls or ():
                if not self._shape.calls or call.get("function", call)["name"] not in marked.text[start:end]:
                    raise Unproved("tool_calls_ignored", f"the template leaves out the tool calls of message {index}")

    def _text(self, messages: Sequence[Mapping[str, Any]], tools: Any, kwargs: Mapping[str, Any]) -> str:
        return self._template.render(messages, tools, kwargs).text

    def _turns(self, item: Conversation, counts: Counter[str]) -> tuple[Message, ...] | Skip:
        """The turns up to the last answer; all of them where everything is trained."""
        turns = item.messages
        last = len(turns) - 1
        while last >= 0 and turns[last].role != "assistant":
            last -= 1
        if self._everything:
            return turns or Skip(item.origin, "empty", "there are no messages")
        if last < 0:
            return Skip(item.origin, "no_assistant_turn")
        if last + 1 == len(turns):
            return turns
        if self._spec.trailing == "skip":
            return Skip(item.origin, "trailing_messages")
        counts["trimmed"] += 1
        return turns[: last + 1]

    def ends(self) -> tuple[str, ...]:
        """The tokens that end an assistant turn."""
        return self._rules_for({}).ends

    def _rules_for(self, kwargs: Mapping[str, Any]) -> TurnRules:
        key = self._key(kwargs)
        if key not in self._rules:
            if len(self._rules) >= _MOST_RULES:
                self._rules.clear()
            self._rules[key] = TurnProbe(self._template, self._shape, kwargs, self._added).rules()
        return self._rules[key]

    @cached_property
    def _read(self) -> frozenset[str]:
        return variables_of(self._source)

    def _key(self, kwargs: Mapping[str, Any]) -> str:
        """What of a row's own arguments the template may look at."""
        read = {name: value for name, value in kwargs.items() if name in self._read} if kwargs else {}
        return json.dumps(read, sort_keys=True, default=str) if read else ""

    def _thoughts_for(self, kwargs: Mapping[str, Any]) -> ThoughtRules:
        key = self._key(kwargs)
        if key not in self._thoughts:
            if len(self._thoughts) >= _MOST_RULES:
                self._thoughts.clear()
            probe = TurnProbe(self._template, self._shape, kwargs, self._added)
            self._thoughts[key] = find_thoughts(probe, self._rules_for(kwargs))
        return self._thoughts[key]

    def check(self) -> None:
        """Make sure that turns can be told apart and end with a token.

        Raises:
            RenderError: They cannot; one sentence says why.
        """
        rules = self._rules_for({})
        if rules.structural and not rules.ends and not rules.tagged and not self._everything:
            raise RenderError(
                "the chat template ends assistant turns with no end-of-turn token, so the model would never learn to stop",
                hint="write the tokenizer's end-of-turn token, such as {{ eos_token }}, after the content of assistant turns",
            )
        turns = (Message("user", "Which tree?"), Message("assistant", "An oak."))
        try:
            self._template.check_marks([shape_message(turn, self._shape, {}) for turn in turns])
        except TemplateFailure as failure:
            raise RenderError(
                f"the chat template fails on one question and its answer: {failure}",
                hint="correct the template, or name another with tokenizer.chat_template",
            ) from None
        found = self.job(Conversation(turns, Origin("check", 0)), Counter())
        if isinstance(found, Skip):
            raise RenderError(
                f"the trained spans of the chat template cannot be proved: {found.detail or found.reason}",
                hint="write {% generation %} tags around assistant turns, or name another template with tokenizer.chat_template",
            )


def own_beginning(engine: Engine) -> tuple[Piece, ...]:
    """The tokens that the tokenizer puts before a text."""
    return tuple(Piece.token("", token) for token in engine.prefix())


def end_of_text(spec: RenderSpec, engine: Engine) -> tuple[Piece, ...]:
    """The token that ends a text; nothing where the tokenizer has none."""
    eos = spec.files.special_tokens.get("eos_token")
    token = None if eos is None else engine.token_id(eos)
    return () if eos is None or token is None else (Piece.token(eos, token),)


class CompletionRows:
    """Prompts and completions: two pieces as at inference, the prompt with the tokenizer's own beginning, and the end of text."""

    def __init__(self, spec: RenderSpec, engine: Engine) -> None:
        self._spec, self._engine = spec, engine
        self._everything = spec.train_on == "everything"
        self._prefix, self._suffix = own_beginning(engine), end_of_text(spec, engine)
        self._special = literals(token.text for token in spec.files.added if token.special)
        self._skips = spec.control_tokens_in_content == "skip"

    def job(self, item: Completion, counts: Counter[str]) -> Job | Skip:
        """The row as text with one span; notes what it met in `counts`."""
        prompt, completion = repair(item.prompt), repair(item.completion)
        if (prompt, completion) != (item.prompt, item.completion):
            counts["repaired_text"] += 1
        if not completion:
            return Skip(item.origin, "empty", "the completion is empty")
        # A prompt may be a conversation that was rendered elsewhere: its special tokens are formed, and the row is told of.
        if self._special.search(prompt) or self._special.search(completion):
            counts["rows_with_control_text"] += 1
            if self._skips:
                return Skip(item.origin, "control_text")
        prompt, completion = head(prompt, self._engine, self._spec), head(completion, self._engine, self._spec)
        pieces = (*self._prefix, Piece(prompt), Piece(completion), *self._suffix)
        text = "".join(piece.text for piece in pieces)
        return Job(text, [(0 if self._everything else len(prompt), len(text), 1.0)], pieces)
