"""Conversations in, token ids and loss weights out: the columnar path.

A batch of rows becomes a list of rendered texts with spans; the texts become one flat id buffer; the weights come from
comparing the places of tokens with the places of spans. There is no Python object per token.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arrowtune.data.render.control import ControlText, Piece
from arrowtune.data.render.engine import Engine
from arrowtune.data.render.masks import Layout, assemble, weights_of
from arrowtune.data.render.probe import TurnRules, find_rules, find_shape
from arrowtune.data.render.spans import Span, Unproved, find_spans, message_weights
from arrowtune.data.render.spec import Encoded, Preview, RenderSpec
from arrowtune.data.render.template import ChatTemplate, Marked, TemplateFailure, shape_message
from arrowtune.data.render.text import repair, repair_conversation
from arrowtune.errors import RenderError
from arrowtune.types import Completion, Conversation, Message, Skip

Item = Conversation | Completion


@dataclass(frozen=True, slots=True)
class Job:
    """A row ready for the token engine: its pieces, and the trained spans in characters of the pieces put together."""

    pieces: tuple[Piece, ...]
    spans: list[Span]

    @property
    def text(self) -> str:
        """The render."""
        return "".join(piece.text for piece in self.pieces)


class Renderer:
    """Turns conversations and completions into token ids and loss weights. One per process; not for concurrent use.

    Args:
        spec: What to do.

    Raises:
        RenderError: The template is not valid.
    """

    def __init__(self, spec: RenderSpec) -> None:
        self.spec = spec
        self.engine = Engine(spec.files, fast=spec.fast)
        self._rules: dict[str, TurnRules] = {}
        self._prefix: list[int] | None = None
        if spec.files.chat_template is not None:
            self._template: ChatTemplate | None = ChatTemplate(
                spec.files.chat_template, spec.files.special_tokens, spec.template_kwargs, spec.date
            )
            self._shape = find_shape(self._template)
            self._control = ControlText(self.engine, spec.files.added)
        else:
            self._template = None

    # ------------------------------------------------------------------ encoding

    def encode(self, items: Sequence[Item]) -> Encoded:
        """Encode a batch of rows.

        Raises:
            RenderError: A row is longer than `max_length` and `overlong` is `raise`; or the template reads the clock.
        """
        counts: Counter[str] = Counter()
        skips: list[Skip] = []
        jobs: list[Job] = []
        kept: list[int] = []
        for index, item in enumerate(items):
            job = self._job(item, counts)
            if isinstance(job, Skip):
                skips.append(job)
            else:
                jobs.append(job)
                kept.append(index)
        layout = assemble([job.pieces for job in jobs], self.engine)
        counts["reference_engine"] += layout.referred
        weights, straddling = weights_of(layout, [job.spans for job in jobs], [job.text for job in jobs])
        counts["straddling"] += straddling
        return self._cut(items, kept, layout, weights, skips, counts)

    def _cut(
        self, items: Sequence[Item], kept: list[int], layout: Layout, weights: Any, skips: list[Skip], counts: Counter[str]
    ) -> Encoded:
        """Apply `max_length`, and leave out rows without anything to train."""
        lengths = np.diff(layout.offsets)
        limit = self.spec.max_length
        over = lengths > limit
        if over.any() and self.spec.overlong == "raise":
            row = int(np.flatnonzero(over)[0])
            raise RenderError(
                f"{items[kept[row]].origin} has {lengths[row]} tokens, more than data.max_length {limit}",
                hint="raise data.max_length, or set data.overlong to truncate or drop",
            )
        ends = layout.offsets[:-1] + np.minimum(lengths, limit)
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(weights > 0)])
        trained = sums[ends] - sums[layout.offsets[:-1]]
        keep = trained > 0
        if self.spec.overlong == "drop":
            keep &= ~over
        for row in np.flatnonzero(~keep):
            reason = "no_trained_tokens" if not over[row] else "overlong" if self.spec.overlong == "drop" else "truncated_away"
            skips.append(Skip(items[kept[row]].origin, reason, f"{lengths[row]} tokens" if over[row] else ""))
        counts["truncated"] += int((over & keep).sum())
        ids = layout.ids
        if over.any() or not keep.all():
            at = np.arange(len(ids)) - np.repeat(layout.offsets[:-1], lengths)
            stays = (at < limit) & np.repeat(keep, lengths)
            ids, weights = ids[stays], weights[stays]
        sizes = np.minimum(lengths, limit)[keep]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        return Encoded(ids, weights, offsets, np.array(kept, np.int64)[keep], skips, {k: n for k, n in counts.items() if n})

    # ------------------------------------------------------------------ one row

    def _job(self, item: Item, counts: Counter[str]) -> Job | Skip:
        if isinstance(item, Completion):
            return self._completion(item, counts)
        if self._template is None:
            raise RenderError(
                "the tokenizer has no chat template", hint="give one with tokenizer.chat_template, a .jinja file or the text itself"
            )
        try:
            return self._conversation(item, counts)
        except UnicodeEncodeError:
            counts["repaired_text"] += 1
            return self._job(repair_conversation(item), counts)
        except TemplateFailure as failure:
            return Skip(item.origin, "template_error", str(failure))
        except Unproved as failure:
            return Skip(item.origin, failure.reason, failure.detail)

    def _completion(self, item: Completion, counts: Counter[str]) -> Job | Skip:
        """Two pieces as at inference: the prompt with the tokenizer's own beginning, then the completion and the end of text."""
        prompt, completion = repair(item.prompt), repair(item.completion)
        if (prompt, completion) != (item.prompt, item.completion):
            counts["repaired_text"] += 1
        eos = self.spec.files.special_tokens.get("eos_token", "")
        end = self.engine.token_id(eos) if eos else None
        if self._prefix is None:
            self._prefix = self.engine.prefix()
        if not completion:
            return Skip(item.origin, "empty", "the completion is empty")
        pieces = [Piece("", token) for token in self._prefix]
        pieces += [Piece(prompt), Piece(completion)]
        if end is not None:
            pieces.append(Piece(eos, end))
        start = len(prompt)
        return Job(tuple(pieces), [(start, start + len(completion) + (len(eos) if end is not None else 0), 1.0)])

    def _conversation(self, item: Conversation, counts: Counter[str]) -> Job | Skip:
        turns, skip = self._turns(item, counts)
        if skip is not None:
            return skip
        roles = [turn.role for turn in turns]
        weights = message_weights(roles, [turn.weight for turn in turns], last_only=self.spec.train_on == "last_assistant_message")
        if not any(weights):
            return Skip(item.origin, "no_trained_tokens", "no turn is trained")
        marked, messages = self._render(turns, item, counts)
        spans = find_spans(marked, weights, self._rules_for(item.template_kwargs), lambda n, opened: self._part(messages, item, n, opened))
        if not self._control.spelled(messages, item.tools, item.template_kwargs):
            if not marked.text.isascii():
                marked.text.encode()  # a lone surrogate shows here
            return Job((Piece(marked.text),), spans)
        counts["rows_with_control_text"] += 1
        if self.spec.control_tokens_in_content == "skip":
            return Skip(item.origin, "control_text")
        pieces = self._control.cut(marked.text, messages, item.tools, item.template_kwargs, self._render_text)
        return Job(pieces, spans)

    def _turns(self, item: Conversation, counts: Counter[str]) -> tuple[Sequence[Message], Skip | None]:
        """The turns up to the last answer."""
        turns = item.messages
        last = max((index for index, turn in enumerate(turns) if turn.role == "assistant"), default=-1)
        if last < 0:
            return turns, Skip(item.origin, "no_assistant_turn")
        if last + 1 < len(turns):
            if self.spec.trailing == "skip":
                return turns, Skip(item.origin, "trailing_messages")
            counts["trimmed"] += 1
            turns = turns[: last + 1]
        return turns, None

    def _render(self, turns: Sequence[Message], item: Conversation, counts: Counter[str]) -> tuple[Marked, list[dict[str, Any]]]:
        assert self._template is not None
        messages = [shape_message(turn, self._shape, counts) for turn in turns]
        return self._template.render(messages, item.tools, item.template_kwargs), messages

    def _render_text(self, messages: Sequence[Mapping[str, Any]], tools: Any, kwargs: Mapping[str, Any]) -> str:
        assert self._template is not None
        return self._template.render(messages, tools, kwargs).text

    def _part(self, messages: Sequence[Mapping[str, Any]], item: Conversation, count: int, opened: bool) -> str:
        assert self._template is not None
        return self._template.render(messages[:count], item.tools, item.template_kwargs, add_generation_prompt=opened).text

    def _rules_for(self, kwargs: Mapping[str, Any]) -> TurnRules:
        key = json.dumps(dict(kwargs), sort_keys=True, default=str) if kwargs else ""
        if key not in self._rules:
            assert self._template is not None
            self._rules[key] = find_rules(self._template, self._shape, kwargs, self._control.at_end, self._control.at_start)
            if not key:
                self._control.learn(self._template, self._shape, self._rules[key])
        return self._rules[key]

    # ------------------------------------------------------------------ for people

    def check_template(self) -> None:
        """Make sure that the template can be used and its spans proved.

        Raises:
            RenderError: With one sentence that says what is wrong.
        """
        if self._template is None:
            return
        rules = self._rules_for({})
        if not rules.ends and not rules.tagged:
            raise RenderError(
                "the chat template ends assistant turns with no end-of-turn token, so the model would never learn to stop",
                hint="add the tokenizer's end-of-turn token, such as eos_token, after the content of assistant turns",
            )

    def preview(self, item: Item) -> Preview:
        """One row as it will be trained."""
        job = self._job(item, Counter())
        if isinstance(job, Skip):
            return Preview("", [], [], job)
        encoded = self.encode([item])
        tokens = list(zip(self.engine.token_bytes(encoded.input_ids.tolist()), encoded.loss_weights.tolist(), strict=True))
        return Preview(job.text, job.spans, tokens, encoded.skips[0] if encoded.skips else None)
