"""Rows of every format, well formed and not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from arrowtune.data.formats import FORMATS, detect_format, get_format
from arrowtune.data.reasons import REASONS, explain
from arrowtune.errors import FormatError
from arrowtune.types import Completion, Conversation, Message, Skip
from support.render import ORIGIN


def parse(name: str, record: dict[str, Any], **columns: str) -> Any:
    return get_format(name).parse(record, ORIGIN, columns)


def turns(item: Any) -> list[tuple[str, Any]]:
    assert isinstance(item, Conversation)
    return [(message.role, message.content) for message in item.messages]


def test_messages_carry_every_field_to_the_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": None}}}
    item = parse(
        "messages",
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "q"}], "name": "ann"},
                {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "r", "train": False},
                {"role": "tool", "content": "t", "tool_call_id": "1"},
                {"role": "assistant", "content": "a", "weight": 0.5},
            ],
            "tools": json.dumps([{"name": "f"}]),
            "chat_template_kwargs": {"enable_thinking": False, "absent": None},
        },
    )
    assert isinstance(item, Conversation)
    _, user, calling, tool, answer = item.messages
    assert user.extra == {"name": "ann"}
    assert user.content == [{"type": "text", "text": "q"}]
    assert (calling.content, calling.reasoning, calling.weight) == (None, "r", 0.0)
    assert calling.tool_calls == [call]
    assert json.dumps(calling.tool_calls[0]) == json.dumps(call)
    assert tool.extra == {"tool_call_id": "1"}
    assert answer.weight == 0.5
    assert item.tools == [{"name": "f"}]
    assert item.template_kwargs == {"enable_thinking": False}


@pytest.mark.parametrize("calls", [[], None, ""])
def test_B27_no_calls_behave_as_absent(calls: Any) -> None:
    item = parse("messages", {"messages": [{"role": "assistant", "content": "a", "tool_calls": calls}]})
    assert item.messages[0] == Message("assistant", "a")


def test_a_single_call_and_calls_as_text_are_lists() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    for given in (call, json.dumps(call), json.dumps([call])):
        item = parse("messages", {"messages": [{"role": "assistant", "content": None, "tool_calls": given}]})
        assert item.messages[0].tool_calls == [call]


def test_B26_the_first_name_of_reasoning_that_is_set_goes_first() -> None:
    both = {"role": "assistant", "content": "c", "reasoning": "old", "reasoning_content": "new", "thinking": None}
    message = parse("messages", {"messages": [both]}).messages[0]
    assert (message.reasoning, message.extra["reasoning"]) == ("new", "old")
    with pytest.raises(FormatError, match=r"rows\.jsonl:7: messages\[0\]\.thinking must be a string, not a list"):
        parse("messages", {"messages": [{"role": "assistant", "content": "c", "thinking": ["x"]}]})


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("hi", r"messages\[0\] must be an object with role and content, not a string"),
        ({"content": "x"}, r"messages\[0\]\.role is missing"),
        ({"role": "user", "content": 3}, r"messages\[0\]\.content must be text, a list of parts or null, not a number"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}, "holds image_url; only text"),
        ({"role": "assistant", "content": "x", "trainable": False}, "trainable is not a known switch"),
        ({"role": "assistant", "content": "x", "train": "no"}, "train must be true or false, not 'no'"),
        ({"role": "assistant", "content": "x", "weight": -1}, "finite number of at least 0"),
        ({"role": "assistant", "content": "x", "weight": float("nan")}, "finite number of at least 0"),
        ({"role": "assistant", "content": "x", "loss_mask": 2}, "must be 0 or 1"),
        ({"role": "assistant", "content": "x", "train": True, "weight": 0}, "says different things in train and weight"),
        ({"role": "user", "content": "x", "train": True}, "asks to train a user turn"),
        ({"role": "assistant", "tool_calls": [{"x": 1}]}, r"tool_calls\[0\] must be an object with a function name"),
        ({"role": "assistant", "tool_calls": "{"}, "is a string that is not JSON"),
    ],
)
def test_B14_and_malformed_messages_name_the_field(message: Any, complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint) as caught:
        parse("messages", {"messages": [message]})
    assert str(caught.value).startswith("rows.jsonl:7: ")


@pytest.mark.parametrize(
    "record", [{}, {"messages": None}, {"messages": 3}, {"messages": "x"}, {"messages": [], "tools": {"a": 1}}]
)
def test_rows_that_are_not_of_the_format(record: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=r"rows\.jsonl:7: (messages|tools) "):
        parse("messages", record)


def test_a_system_column_is_not_doubled() -> None:
    row = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    assert turns(parse("messages", {"messages": row, "system": "S"}))[0] == ("system", "S")
    own = [{"role": "system", "content": "own"}, *row]
    assert turns(parse("messages", {"messages": own, "system": "S"})) == [("system", "own"), ("user", "q"), ("assistant", "a")]


@pytest.mark.parametrize(
    ("said", "role"),
    [
        *((said, "user") for said in ("human", "user")),
        *((said, "assistant") for said in ("gpt", "ChatGPT", "bing", "bard", "model")),
        ("observation", "tool"),
        ("system", "system"),
    ],
)
def test_sharegpt_spellings_of_roles(said: str, role: str) -> None:
    item = parse("sharegpt", {"conversations": [{"from": said, "value": "x"}, {"from": "gpt", "value": "y"}]})
    assert turns(item) == [(role, "x"), ("assistant", "y")]


def test_sharegpt_calls_and_results_of_tools() -> None:
    call = {"name": "f", "arguments": {"x": 1}}
    row = [("human", "q"), ("function_call", json.dumps(call)), ("observation", "r"), ("gpt", "a")]
    item = parse("sharegpt", {"conversations": [{"from": who, "value": what} for who, what in row], "tools": "[]", "system": "S"})
    assert turns(item) == [("system", "S"), ("user", "q"), ("assistant", ""), ("tool", "r"), ("assistant", "a")]
    assert item.messages[2].tool_calls == [{"type": "function", "function": call}]
    assert item.tools is None
    with pytest.raises(FormatError, match="function_call turn is not JSON"):
        parse("sharegpt", {"conversations": [{"from": "function_call", "value": "f("}]})


def test_sharegpt_odd_rows() -> None:
    with pytest.raises(FormatError, match="is the unknown role 'alien'"):
        parse("sharegpt", {"conversations": [{"from": "alien", "value": "x"}]})
    assert parse("sharegpt", {"conversations": []}).reason == "empty"
    asked = {"from": "human", "value": "x"}
    for unanswered in ([asked], [asked, {"from": "gpt", "value": ""}]):
        assert parse("sharegpt", {"conversations": unanswered}).reason == "no_assistant_turn"
    renamed = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    assert turns(parse("sharegpt", {"chats": renamed}, conversations="chats")) == [("user", "x"), ("assistant", "y")]


def test_alpaca() -> None:
    item = parse("alpaca", {"instruction": "do", "input": "this", "output": "done", "history": [["a", "b"]], "system": "S"})
    assert turns(item) == [("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "do\nthis"), ("assistant", "done")]
    assert turns(parse("alpaca", {"instruction": "do", "input": "", "output": "done"}))[0] == ("user", "do")
    assert isinstance(parse("alpaca", {"instruction": "do", "output": ""}), Skip)
    with pytest.raises(FormatError, match="output is missing"):
        parse("alpaca", {"instruction": "do"})
    with pytest.raises(FormatError, match=r"history\[0\] must be a pair"):
        parse("alpaca", {"instruction": "do", "output": "x", "history": [["a"]]})


def test_prompt_completion() -> None:
    assert parse("prompt_completion", {"prompt": "p", "completion": "c"}) == Completion("p", "c", ORIGIN)
    assert parse("prompt_completion", {"prompt": "p", "completion": ""}).reason == "empty"
    said = [("user", "q"), ("assistant", "x"), ("user", "r"), ("assistant", "y")]
    chats = [{"role": role, "content": content} for role, content in said]
    item = parse("prompt_completion", {"prompt": chats[:3], "completion": chats[3:]})
    assert [message.weight for message in item.messages] == [0.0, 0.0, 0.0, None]
    with pytest.raises(FormatError, match="completion is missing"):
        parse("prompt_completion", {"prompt": "p"})


@pytest.mark.parametrize(
    ("columns", "names", "wanted"),
    [
        (["messages", "id"], {}, "messages"),
        (["conversations"], {}, "sharegpt"),
        (["instruction", "input", "output"], {}, "alpaca"),
        (["completion", "prompt"], {}, "prompt_completion"),
        (["dialog"], {"messages": "dialog"}, "messages"),
    ],
)
def test_detection_looks_at_columns(columns: list[str], names: dict[str, str], wanted: str) -> None:
    assert detect_format(columns, names, "rows.jsonl") == wanted


def test_unknown_columns_and_formats_list_what_there_is() -> None:
    with pytest.raises(FormatError, match=r"rows\.jsonl have the columns bar, foo, which no format reads") as caught:
        detect_format(["foo", "bar"], {}, "rows.jsonl")
    assert all(name in caught.value.hint for name in FORMATS)
    with pytest.raises(FormatError, match="no format 'csvish'"):
        get_format("csvish")


def test_every_reason_is_a_sentence() -> None:
    assert all(explain(reason) == sentence and " " in sentence for reason, sentence in REASONS.items())
    assert explain("of_another_version") == "of_another_version"


def test_a_column_that_is_null_is_not_read() -> None:
    record = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "tools": [{"name": "f"}],
        "system": "s",
    }
    read = get_format("messages").parse(record, ORIGIN, {})
    without = get_format("messages").parse(record, ORIGIN, {"tools": None, "system": None})
    assert (read.tools, len(read.messages)) == ([{"name": "f"}], 3)
    assert (without.tools, len(without.messages)) == (None, 2)
