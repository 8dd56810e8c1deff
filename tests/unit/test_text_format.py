"""Documents: every token is trained, none is lost or doubled where a long one is split, and the end of text is written once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowtune.data.formats import detect_format
from arrowtune.data.render import Renderer, RenderSpec
from arrowtune.data.store import Store
from arrowtune.errors import FormatError, RenderError
from arrowtune.types import Document
from support.prepare import chat, prepare, spec, write_lines
from support.render import NAMES, ORIGIN, engine, tokenizer


def renderer(name: str, **options: Any) -> Renderer:
    return Renderer(RenderSpec(tokenizer(name), **{"max_length": 1 << 20, **options}), engine(name))


def reference(name: str, text: str) -> list[int]:
    """The tokenizer of transformers, special tokens around a text included, and the end of text once."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tokenizer(name).folder)
    ids = list(theirs(text, add_special_tokens=True)["input_ids"])
    return ids if ids[-1] == theirs.eos_token_id else [*ids, theirs.eos_token_id]


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_transformers_with_one_end_of_text(name: str) -> None:
    text = "Ein Text, größer als “drei” Wörter.\n\n\tDef f(x): 1234 日本"
    encoded = renderer(name).encode([Document(text, ORIGIN)])
    assert encoded.input_ids.tolist() == reference(name, text)
    assert encoded.loss_weights.tolist() == [0.0] + [1.0] * (len(encoded.input_ids) - 1)
    eos = tokenizer(name).special_tokens["eos_token"]
    again = renderer(name).encode([Document(text + eos, ORIGIN)])
    assert again.input_ids.tolist() == encoded.input_ids.tolist()


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), min_size=1, max_size=6),
    limit=st.integers(3, 20),
)
def test_long_documents_lose_and_double_no_token(texts: list[str], limit: int) -> None:
    documents = [Document(text, ORIGIN) for text in texts]
    whole = renderer("tiny").encode(documents)
    parts = renderer("tiny", max_length=limit).encode(documents)
    lengths, kept = np.diff(parts.offsets), np.bincount(parts.kept, minlength=len(texts))
    assert np.array_equal(parts.input_ids, whole.input_ids)
    assert lengths.max(initial=0) <= limit
    sizes = dict(zip(whole.kept.tolist(), np.diff(whole.offsets).tolist(), strict=True))
    assert kept.tolist() == [-(-sizes.get(row, 0) // limit) for row in range(len(texts))]
    assert (parts.loss_weights[parts.offsets[:-1]] == 0).all()
    assert parts.loss_weights.sum() == len(parts.input_ids) - len(lengths)
    assert parts.counts.get("split", 0) == (kept > 1).sum()


def test_the_other_policies_of_length_hold(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a few words " * 20}, {"text": "short"}])
    cut = prepare(path, tmp_path / "cache", rendering=spec(max_length=16))
    assert cut.rows > 3
    assert cut.skipped == {}
    dropped = prepare(path, tmp_path / "cache", rendering=spec(max_length=16, overlong="drop"))
    assert (dropped.rows, dropped.skipped) == (1, {"overlong": 1})
    with pytest.raises(RenderError, match=r"a.jsonl:1 has \d+ tokens"):
        prepare(path, tmp_path / "cache", rendering=spec(max_length=16, overlong="raise"))


def test_control_tokens_that_a_document_spells_stay_text_unless_allowed() -> None:
    forged = "He wrote <|im_end|> and nothing ended."
    name = "qwen3"
    ids = {
        policy: renderer(name, control_tokens_in_content=policy).encode([Document(forged, ORIGIN)])
        for policy in ("text", "allow", "skip")
    }
    end = engine(name).token_id("<|im_end|>")
    assert end not in ids["text"].input_ids[:-1].tolist()
    assert end in ids["allow"].input_ids[:-1].tolist()
    assert [skip.reason for skip in ids["skip"].skips] == ["control_text"]
    assert engine(name).decode(ids["text"].input_ids.tolist()).startswith(forged)


def test_the_format_is_seen_and_other_columns_do_not_matter(tmp_path: Path) -> None:
    assert detect_format(["text"], {}, "x") == "text"
    assert detect_format(["url", "text", "timestamp"], {}, "x") == "text"
    assert detect_format(["messages", "text"], {}, "x") == "messages"
    rows = [{"text": "one"}, {"text": ""}, {"text": None}, {"text": 5}, {}]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(FormatError, match="3 of 5 rows") as raised:
        prepare(path, tmp_path / "cache")
    told = str(raised.value)
    assert all(
        line in told for line in ("a.jsonl:3: text is null", "a.jsonl:4: text must be a string", "a.jsonl:5: text is missing")
    )
    found = prepare(path, tmp_path / "cache", max_bad_rows=0.9)
    assert (found.rows, found.skipped) == (1, {"bad_row": 3, "empty": 1})


def test_pieces_name_their_document_and_workers_change_nothing(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": f"{k} " + "lorem ipsum dolor " * 40} for k in range(40)])
    one, two = (prepare(path, tmp_path / str(n), workers=n, rendering=spec(max_length=64)) for n in (1, 2))
    assert one.identity == two.identity
    store = Store(one.path)
    origins = [str(store[k].origin) for k in range(len(store))]
    assert set(origins) == {f"a.jsonl:{k + 1}" for k in range(40)}
    assert len(origins) > 40
    assert one.rows == len(origins)


def test_a_template_that_changes_makes_no_document_anew(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "some words"}])
    first = prepare(path, tmp_path / "cache")
    assert (
        prepare(path, tmp_path / "cache", rendering=spec("{{ messages }}", train_on="last_assistant_message")).identity
        == first.identity
    )
    assert prepare(path, tmp_path / "cache", rendering=spec(max_length=3)).identity != first.identity


def test_documents_ids_and_chats_are_trained_in_one_run(tmp_path: Path) -> None:
    from support.run import config, train

    text = write_lines(tmp_path / "text.jsonl", [{"text": f"document {k}"} for k in range(20)])
    ids = write_lines(tmp_path / "ids.jsonl", [{"input_ids": [k, 5, 6], "loss_mask": [0, 1, 1]} for k in range(20)])
    chats = write_lines(tmp_path / "chats.jsonl", [chat(f"{k}?", f"{k}.") for k in range(20)])
    data = {
        "train": [str(text), str(ids), str(chats)],
        "eval": [{"path": str(ids), "name": "held"}],
        "max_length": 64,
        "workers": 1,
    }
    run = config(tmp_path, data=data, train={"epochs": 2}, batch={"examples": 8})
    train(run)
    seen = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    sources = [line["per_source"] for line in seen if line["kind"] == "train"]
    assert {name: sum(step.get(name, 0) for step in sources) for name in ("text", "ids", "chats")} == dict.fromkeys(
        ("text", "ids", "chats"), 40
    )
