"""Conversations in, token ids and loss weights out: the columnar path.

A batch of rows becomes a list of rendered texts with spans; the texts become one flat id buffer; the weights come from
comparing the places of tokens with the places of spans. There is no Python object per token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from arrowtune.data.render.documents import DocumentRows
from arrowtune.data.render.engine import Engine
from arrowtune.data.render.fit import check_ids, fit, joined, split, without_first
from arrowtune.data.render.masks import assemble, weights_of
from arrowtune.data.render.rows import ChatRows, CompletionRows, Job
from arrowtune.data.render.spec import Encoded, Preview, RenderSpec
from arrowtune.protocols import Tokens
from arrowtune.types import Completion, Document, Item, Origin, Skip, Tokenized


@dataclass(frozen=True, slots=True)
class Rendered:
    """Rows as text with spans, before the token engine has seen them.

    Attributes:
        origins: Of all rows, skipped ones included.
        rows: int64[k], which of them the jobs are.
        jobs: The rows ready for the engine.
        skips: The others.
        counts: What rendering met.
        documents: Whether the rows are documents, of which long ones are split.
    """

    origins: Sequence[Origin]
    rows: npt.NDArray[np.int64]
    jobs: Sequence[Job]
    skips: list[Skip]
    counts: Counter[str]
    documents: bool = False

    def __len__(self) -> int:
        return len(self.origins)


class Renderer:
    """Turns conversations and completions into token ids and loss weights. One per process; not for concurrent use.

    Args:
        spec: What to do.
        engine: A token engine of the same tokenizer, to share; else one is opened.

    Raises:
        RenderError: The template is not valid Jinja.
    """

    def __init__(self, spec: RenderSpec, engine: Engine | None = None) -> None:
        self.spec = spec
        self.engine = engine or Engine(spec.files, fast=spec.fast)
        self._chat = ChatRows(spec, self.engine) if spec.files.chat_template is not None else None

    @cached_property
    def _completions(self) -> CompletionRows:
        return CompletionRows(self.spec, self.engine)

    @cached_property
    def _documents(self) -> DocumentRows:
        return DocumentRows(self.spec, self.engine)

    def encode(self, items: Sequence[Item]) -> Encoded:
        """Encode a batch of rows.

        Raises:
            RenderError: There is no template; it reads the clock and no date is set; or a row is longer than
                `max_length` and `overlong` is `raise`.
        """
        if any(isinstance(item, Tokenized) for item in items):
            return self._as_they_are([item for item in items if isinstance(item, Tokenized)])
        return self.tokenise(self.render(items))

    def render(self, items: Sequence[Item]) -> Rendered:
        """The first half of `encode`: texts and spans.

        Raises:
            RenderError: There is no template, or it reads the clock and no date is set.
        """
        counts: Counter[str] = Counter()
        skips: list[Skip] = []
        jobs: list[Job] = []
        rows: list[int] = []
        for index, item in enumerate(items):
            job = self._job(item, counts)
            if isinstance(job, Skip):
                skips.append(job)
            else:
                jobs.append(job)
                rows.append(index)
        documents = any(isinstance(item, Document) for item in items)
        return Rendered([item.origin for item in items], np.array(rows, np.int64), jobs, skips, counts, documents)

    def tokenise(self, rendered: Rendered) -> Encoded:
        """The second half of `encode`: ids and weights.

        Raises:
            RenderError: A row is longer than `max_length` and `overlong` is `raise`.
        """
        tokens = assemble(rendered.jobs, self.engine)
        weights, straddling = weights_of(tokens, rendered.jobs)
        counts = rendered.counts + Counter(straddling=straddling, reference_engine=tokens.referred)
        origins = [rendered.origins[row] for row in rendered.rows.tolist()]
        known, rows = Tokens(tokens.ids, weights, tokens.offsets), rendered.rows
        if rendered.documents and self.spec.overlong == "truncate":
            known, pieces = split(known, self.spec.max_length)
            counts["split"] += int((np.bincount(pieces) > 1).sum()) if len(pieces) else 0
            origins, rows = [origins[row] for row in pieces.tolist()], rows[pieces]
        return fit(origins, rows, without_first(known), list(rendered.skips), counts, self.spec)

    def _as_they_are(self, examples: Sequence[Tokenized]) -> Encoded:
        """Rows that are ids already; a source holds nothing else then."""
        whole = Tokens(
            np.concatenate([example.input_ids for example in examples]).astype(np.int32, copy=False),
            np.concatenate([example.loss_weights for example in examples]).astype(np.float32, copy=False),
            np.cumsum([0, *(len(example.input_ids) for example in examples)], dtype=np.int64),
        )
        origins = [example.origin for example in examples]
        check_ids(whole, self.spec.id_limit, origins)
        return fit(origins, np.arange(len(examples)), without_first(whole), [], Counter(), self.spec)

    def _job(self, item: Item, counts: Counter[str]) -> Job | Skip:
        assert not isinstance(item, Tokenized)
        if isinstance(item, Document):
            return self._documents.job(item, counts)
        if isinstance(item, Completion):
            return self._completions.job(item, counts)
        if self._chat is None:
            self._chat = ChatRows(self.spec, self.engine)
        return self._chat.job(item, counts)

    def check_template(self) -> None:
        """Make sure that the template can be used and its trained spans proved; nothing where there is no template.

        Raises:
            RenderError: With one sentence that says what is wrong.
        """
        if self._chat is not None:
            self._chat.check()

    def stop_token_ids(self) -> tuple[int, ...]:
        """The ids that end an assistant turn, and the end of text: what generation with the trained model must stop at."""
        texts = [*(self._chat.ends() if self._chat is not None else ()), self.spec.files.special_tokens.get("eos_token")]
        ids = [self.engine.token_id(text) for text in texts if text is not None]
        return tuple(dict.fromkeys(token for token in ids if token is not None))

    def preview(self, item: Item) -> Preview:
        """One row as it will be trained."""
        if isinstance(item, Tokenized):
            return self._preview_of_ids(item)
        job = self._job(item, Counter())
        if isinstance(job, Skip):
            return Preview("", [], [], job)
        encoded = self.encode([item])
        texts = self.engine.token_texts(encoded.input_ids.tolist())
        tokens = list(zip(texts, encoded.loss_weights.tolist(), strict=True))
        return Preview(job.text, job.spans, tokens, encoded.skips[0] if encoded.skips else None)

    def _preview_of_ids(self, example: Tokenized) -> Preview:
        encoded = self.encode([example])
        pieces = self.engine.token_texts(encoded.input_ids.tolist())
        ends = np.cumsum([0, *map(len, pieces)]).tolist()
        weights = encoded.loss_weights.tolist()
        spans = [(ends[k], ends[k + 1], weight) for k, weight in enumerate(weights) if weight > 0]
        return Preview(
            "".join(pieces), joined(spans), list(zip(pieces, weights, strict=True)), encoded.skips[0] if encoded.skips else None
        )
