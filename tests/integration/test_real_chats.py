"""2,000 real conversations through Qwen3's tokenizer and template, against transformers itself."""

from __future__ import annotations

import re
import unicodedata

import pytest

from arrowtune.types import Message
from support.assets import tokenizer_folder
from support.render import context_text, encode, ids_of, real_chats, renderer, trained_runs

_THOUGHT = "<think>\n\n</think>\n\n"


def _until_last_answer(messages: tuple[Message, ...]) -> list[Message]:
    last = max(index for index, message in enumerate(messages) if message.role == "assistant")
    return list(messages[: last + 1])


def _expected(messages: list[Message]) -> tuple[list[str], str]:
    """What Qwen3's template writes, worked out without Jinja: the answers after their generation prompts, and the rest."""
    queries = [index for index, message in enumerate(messages) if message.role == "user"]
    last_query = queries[-1] if queries else len(messages) - 1
    answers, rest = [], ""
    for index, message in enumerate(messages):
        content = str(message.content)
        rest += f"<|im_start|>{message.role}\n"
        if message.role != "assistant":
            rest += content + "<|im_end|>\n"
            continue
        assert "</think>" not in content
        thinks = index > last_query and index == len(messages) - 1
        answers.append((_THOUGHT + content.lstrip("\n") if thinks else content) + "<|im_end|>")
        rest += "\n"
    return answers, rest


def test_ids_and_trained_spans_of_real_chats() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder("qwen3"))
    qwen = renderer("qwen3")
    assert qwen.engine.fast, qwen.engine.reason
    items = real_chats(2000)
    encoded = encode(qwen, *items)
    assert encoded.kept.tolist() == list(range(2000))
    straddling = odd = 0
    for example, item in enumerate(items):
        messages = _until_last_answer(item.messages)
        turns = [{"role": message.role, "content": message.content} for message in messages]
        if re.search(r"<\|\w+\|>", "".join(str(message.content) for message in messages)):
            odd += 1
        else:
            assert ids_of(encoded, example) == tokenizer.apply_chat_template(turns)["input_ids"]
        answers, rest = _expected(messages)
        runs = trained_runs(qwen, encoded, example)
        if runs == [unicodedata.normalize("NFC", answer) for answer in answers]:
            assert context_text(qwen, encoded, example) == unicodedata.normalize("NFC", rest)
        else:
            # A token that straddles the start of a span is context; nothing else may be missing.
            straddling += 1
            assert all(answer.endswith(run) for answer, run in zip(answers, runs, strict=True))
    assert straddling == encoded.counts.get("straddling", 0)
    assert straddling < 20
    assert encoded.counts.get("rows_with_control_text", 0) <= odd < 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3_1", "gemma3", "deepseek_v3"])
def test_ids_of_real_chats_with_other_tokenizers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder(name))
    subject = renderer(name)
    assert subject.engine.fast, subject.engine.reason
    items = real_chats(1000)
    encoded = encode(subject, *items)
    assert all(found.reason == "template_error" for found in encoded.skips)  # Gemma wants turns to alternate
    spelled = 0
    for example, row in enumerate(encoded.kept.tolist()):
        messages = _until_last_answer(items[row].messages)
        turns = [{"role": message.role, "content": message.content} for message in messages]
        ids = tokenizer.apply_chat_template(turns)["input_ids"]
        if ids_of(encoded, example) != ids:
            spelled += 1
            text = tokenizer.apply_chat_template(turns, tokenize=False)
            assert subject.preview(items[row]).text == text
            assert encode(subject, items[row]).counts["rows_with_control_text"] == 1
        # Turns end with their end, and are as many as the answers.
        answers = sum(message.role == "assistant" for message in messages)
        runs = trained_runs(subject, encoded, example)
        assert len(runs) == answers
        assert len({run[-8:] for run in runs}) == 1
    assert spelled < 20
