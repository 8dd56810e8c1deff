"""The embedded model and the examples: made by their generators, disjoint, valid, and loadable by transformers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arrowtune import prepare
from arrowtune.config import SFTConfig
from arrowtune.resolve import resolve
from support.assets import EXAMPLES, ROOT, TINY

FILES = sorted(path for path in (EXAMPLES / "data").rglob("*") if path.is_file())


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a data file, whatever holds them; pyarrow unpacks by the suffix."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    text = pa.input_stream(str(path)).read().decode()
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def questions(row: dict[str, Any]) -> set[str]:
    """What a row asks, without the words around it that belong to the format."""
    if "instruction" in row:
        return {f"{row['instruction']} {row['input']}"} if row["input"] else set()
    if "prompt" in row:
        return {row["prompt"].removeprefix("Question: ").removesuffix("\nAnswer:")}
    turns = row.get("messages", row.get("conversations"))
    if not isinstance(turns, list):
        return set()
    asked = [turn.get("content", turn.get("value")) for turn in turns if turn.get("role", turn.get("from")) in ("user", "human")]
    return set(asked)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_parses_and_resolves(path: Path) -> None:
    resolve(SFTConfig.load(path), devices=1, gpu=False)


def test_the_generator_gives_the_data_files() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "make_examples.py"))["make"]()
    assert {str(path.relative_to(EXAMPLES / "data")): rows(path) for path in FILES} == made


def test_the_generator_gives_the_tiny_tokenizer_and_configuration(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "tools" / "make_tiny.py"))["main"](tmp_path)
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    assert [name for name in written if (tmp_path / name).read_bytes() != (TINY / name).read_bytes()] == []


def test_some_thousand_rows_in_less_than_a_megabyte() -> None:
    assert 900 <= sum(len(rows(path)) for path in FILES) <= 1200
    assert sum(path.stat().st_size for path in FILES) < 1_000_000


def test_no_held_out_question_is_asked_in_the_training_part() -> None:
    asked: dict[str, set[str]] = {"train": set(), "heldout": set()}
    for path in FILES:
        asked[path.parent.name] |= {question for row in rows(path) for question in questions(row)}
    # "That is not right." is no question of its own.
    assert (asked["train"] & asked["heldout"]) - {"That is not right."} == set()
    assert len(asked["heldout"]) > 80


def test_the_tiny_run_reads_four_formats_and_reports_the_spoilt_rows() -> None:
    config = SFTConfig.load(EXAMPLES / "tiny.yaml")
    sources = [source.model_copy(update={"path": str(ROOT / source.path)}) for source in config.data.train]
    data = config.data.model_copy(update={"train": tuple(sources), "eval": (), "workers": 1})
    stores = [store.to_json() for store in prepare(config.model_copy(update={"data": data}))]
    assert {store["name"]: store["skipped"] for store in stores} == {
        "chats": {"bad_row": 1, "no_assistant_turn": 1},
        "dialogs": {"empty": 1},
        "tasks": {"empty": 1},
        "completions": {},
    }
    for store in stores:
        assert store["rows"] + sum(store["skipped"].values()) == store["rows_read"]
        assert 0 < store["trained_tokens"] < store["tokens"]


def test_transformers_loads_the_tiny_folder() -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    config = AutoConfig.from_pretrained(TINY)
    assert (len(tokenizer), config.vocab_size) == (2048, 2048)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", config.eos_token_id)
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("<|endoftext|>", config.pad_token_id)
    assert tokenizer.bos_token is None
    assert config.bos_token_id is None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert 1_000_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 5_000_000


def test_the_tiny_template_renders_every_kind_of_turn() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "sky", "times": 2}}}
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Is it "}, {"type": "text", "text": "blue?"}]},
        {"role": "assistant", "content": None, "reasoning_content": "I must look.", "tool_calls": [call, call]},
        {"role": "tool", "content": '{"colour": "blue"}'},
        {"role": "assistant", "content": "Yes."},
    ]
    text = tokenizer.apply_chat_template(messages, tools=[{"name": "look"}], tokenize=False, add_generation_prompt=True)
    look = '<tool_call>\n{"name": "look", "arguments": {"at": "sky", "times": 2}}\n</tool_call>'
    assert text == (
        "<|im_start|>system\nBe kind.\n\nThese tools can be called, each described by a JSON schema:\n"
        '{"name": "look"}\nA call is a JSON object with name and arguments between tool_call tags.<|im_end|>\n'
        "<|im_start|>user\nIs it blue?<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nI must look.\n</think>\n\n{look}\n{look}<|im_end|>\n"
        '<|im_start|>tool\n<tool_response>\n{"colour": "blue"}\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\nYes.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    with pytest.raises(Exception, match="not narrator"):
        tokenizer.apply_chat_template([{"role": "narrator", "content": "Once."}], tokenize=False)
