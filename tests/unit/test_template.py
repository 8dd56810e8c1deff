"""Our template environment against transformers', over many templates; tool calls, reasoning, nulls and parts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from arrowtune.data.formats import get_format
from arrowtune.data.render.probe import find_shape
from arrowtune.data.render.template import ChatTemplate, Shape, TemplateFailure, shape_message
from arrowtune.types import Conversation, Message
from support.render import CHATML, NAMES, ORIGIN, chat, encode, skip, tokenizer, trained, with_template

_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_TOOL = {
    "type": "function",
    "function": {"name": "größe", "description": "größe <b> & 'q' \"d\"", "parameters": {"z": {}, "a": [1, 2.0]}},
}
_CALL = {
    "id": "abcdef123",
    "type": "function",
    "function": {"name": "größe", "arguments": {"zeta": 1, "alpha": {}, "none": None}},
}
_ROWS: dict[str, dict[str, Any]] = {
    "single": {"messages": [{"role": "user", "content": "Q <b> ü"}, {"role": "assistant", "content": " A\n"}]},
    "multi": {
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "Q1"},
            {"role": "assistant", "content": "A1", "reasoning_content": "R1"},
            {"role": "user", "content": "Q2"},
            {"role": "assistant", "content": "A2", "thinking": "R2"},
        ]
    },
    "tools": {
        "messages": [
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": "", "tool_calls": [_CALL, _CALL]},
            {"role": "tool", "content": "T1", "name": "größe", "tool_call_id": "abcdef123"},
            {"role": "tool", "content": "T2", "name": "größe", "tool_call_id": "abcdef123"},
            {"role": "assistant", "content": "A"},
        ],
        "tools": [_TOOL],
    },
}


def _templates() -> dict[str, str]:
    found = {name: str(tokenizer(name).chat_template) for name in NAMES}
    spec = importlib.util.find_spec("trl")
    folder = Path(str(spec.origin)).parent / "chat_templates" if spec else Path("nowhere")
    return found | {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


@pytest.mark.parametrize("row", _ROWS)
def test_every_template_renders_as_transformers_does(row: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    record = _ROWS[row]
    item = get_format("messages").parse(record, ORIGIN, {})
    assert isinstance(item, Conversation)
    same = refused = 0
    for name, source in _templates().items():
        ours = ChatTemplate(source, _SPECIAL, {}, "2026-11-30")
        messages = [shape_message(message, Shape(parts="keep"), {}) for message in item.messages]
        for opened in (False, True):
            try:
                wanted = utils.render_jinja_template(
                    [record["messages"]], record.get("tools"), chat_template=source, add_generation_prompt=opened, **_SPECIAL
                )[0][0]
            except Exception:  # noqa: BLE001 - templates raise whatever they like
                with pytest.raises(TemplateFailure):
                    ours.render(messages, item.tools, add_generation_prompt=opened)
                refused += 1
                continue
            found = ours.render(messages, item.tools, add_generation_prompt=opened).text
            if "strftime_now" not in source:
                assert found == wanted, name
            same += 1
    assert same > refused


def test_every_template_compiles_to_the_same_text_with_and_without_marks() -> None:
    for name, source in _templates().items():
        template = ChatTemplate(source, _SPECIAL, {}, "2026-11-30")
        turns = [Message("user", "Which?"), Message("assistant", "That.")]
        failure = ""
        try:
            template.check_marks([shape_message(turn, find_shape(template), {}) for turn in turns])
        except TemplateFailure as raised:  # refusing a plain question and answer is the template's right
            failure = str(raised)
        assert "watched" not in failure, name


def test_B24_arguments_as_string_or_object_render_alike() -> None:
    call = "(m.content or '') + (m.tool_calls[0].function.name + (%s) if m.tool_calls else '') +"
    twice = CHATML.replace("m.content +", call % "m.tool_calls[0].function.arguments | tojson")
    raw = CHATML.replace("m.content +", call % "m.tool_calls[0].function.arguments")

    def turn(arguments: object) -> Conversation:
        record = {"tool_calls": [{"function": {"name": "Rome", "arguments": arguments}}], "role": "assistant", "content": None}
        item = get_format("messages").parse({"messages": [{"role": "user", "content": "go"}, record]}, ORIGIN, {})
        assert isinstance(item, Conversation)
        return item

    for template in (twice, raw):
        renderer = with_template(template)
        spans = [trained(renderer, turn(arguments)) for arguments in ({"city": "Rome"}, '{"city": "Rome"}')]
        assert spans[0] == spans[1] == ['Rome{"city": "Rome"}<|im_end|>']
    renderer = with_template(twice)
    for invalid in ("{city:", "", "null"):
        encoded = encode(renderer, turn(invalid))
        assert encoded.counts["invalid_tool_arguments"] == 1
        assert renderer.preview(turn(invalid)).text.endswith(f"Rome{json.dumps(invalid)}<|im_end|>\n")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_B26_reasoning_reaches_the_template_under_every_name(field: str) -> None:
    record = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "c", field: "r"}]}
    item = get_format("messages").parse(record, ORIGIN, {})
    assert isinstance(item, Conversation)
    assert trained(with_template(str(tokenizer("qwen3").chat_template)), item) == ["<think>\nr\n</think>\n\nc<|im_end|>"]
    assert encode(with_template(CHATML), item).counts["reasoning_ignored"] == 1


def test_B27_tools_reach_every_render_and_results_stay_context() -> None:
    renderer = with_template(str(tokenizer("qwen3").chat_template))
    record = _ROWS["tools"]
    texts = []
    for tools in (record["tools"], json.dumps(record["tools"])):
        item = get_format("messages").parse({**record, "tools": tools}, ORIGIN, {})
        assert isinstance(item, Conversation)
        spans = trained(renderer, item)
        assert [span.count("<tool_call>") for span in spans] == [2, 0]
        assert not any(result in "".join(spans) for result in ("T1", "T2"))
        texts.append(renderer.preview(item).text)
    assert texts[0] == texts[1]
    assert '"description": "größe <b> & \'q\' \\"d\\""' in texts[0]  # B28: neither escaped nor sorted
    assert '{"zeta": 1, "alpha": {}, "none": null}' in texts[0]


def test_B28_the_json_filter_writes_as_in_transformers_neither_escaped_nor_sorted() -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    for form in ("tojson", "tojson(indent=2)", "tojson(ensure_ascii=False)", "tojson(separators=(',', ':'), sort_keys=True)"):
        source = "{% for tool in tools %}{{ tool | " + form + " }}{% endfor %}" + CHATML
        turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        wanted = utils.render_jinja_template([turns], [_TOOL], chat_template=source, add_generation_prompt=False)[0][0]
        preview = with_template(source).preview(chat("u:q", "a:a", tools=[_TOOL]))
        assert preview.text == wanted
        assert "größe <b> & 'q'" in preview.text


def test_B27_calls_that_a_template_leaves_out_are_not_trained() -> None:
    call = Message("assistant", "", tool_calls=[_CALL])
    assert skip(with_template(CHATML), chat("u:q", call, "t:r", "a:done")).reason == "tool_calls_ignored"


@pytest.mark.parametrize("name", NAMES)
def test_B29_null_content_never_becomes_the_word_none(name: str) -> None:
    renderer = with_template(str(tokenizer(name).chat_template), name)
    turns = [
        Message("user", "q"),
        Message("assistant", None, tool_calls=[_CALL, _CALL]),
        Message("tool", "r"),
        Message("assistant", "done"),
    ]
    preview = renderer.preview(chat(*turns))
    assert preview.skip is not None or "None" not in preview.text
    if name in ("qwen3", "deepseek_v3"):
        assert preview.skip is None, preview.skip


def test_B29_text_parts_are_their_text_for_templates_that_want_strings() -> None:
    parts = Message("assistant", [{"type": "text", "text": "y"}, {"type": "text", "text": "es"}])
    assert trained(with_template(CHATML), chat("u:q", parts)) == ["yes<|im_end|>"]
    gemma = with_template(str(tokenizer("gemma3").chat_template), "gemma3")
    assert trained(gemma, chat("u:q", parts)) == ["yes<end_of_turn>"]


def test_templates_that_want_parts_get_them() -> None:
    wants = CHATML.replace("m.content", "m.content[0].text")
    assert trained(with_template(wants), chat("u:q", "a:yes")) == ["yes<|im_end|>"]


def test_rows_of_their_own_template_arguments() -> None:
    renderer = with_template(str(tokenizer("qwen3").chat_template))
    assert trained(renderer, chat("u:q", "a:yes", template_kwargs={"enable_thinking": False})) == ["yes<|im_end|>"]
    assert trained(renderer, chat("u:q", "a:yes")) == ["<think>\n\n</think>\n\nyes<|im_end|>"]
    quiet = with_template(str(tokenizer("qwen3").chat_template), template_kwargs={"enable_thinking": False})
    assert trained(quiet, chat("u:q", "a:one", "u:r", "a:two")) == ["one<|im_end|>", "two<|im_end|>"]


def test_arguments_that_a_template_does_not_read_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = with_template(str(tokenizer("qwen3").chat_template))
    renderer.check_template()
    rules = renderer._chat._rules
    for number in range(3):
        trained(renderer, chat("u:q", "a:yes", template_kwargs={"row": number}))
    assert len(rules) == 1
    trained(renderer, chat("u:q", "a:yes", template_kwargs={"row": 1, "enable_thinking": False}))
    assert len(rules) == 2
    monkeypatch.setattr("arrowtune.data.render.rows._MOST_RULES", 2)
    trained(renderer, chat("u:q", "a:yes", template_kwargs={"enable_thinking": True}))
    assert len(rules) == 1


def test_templates_cannot_change_or_reach_what_they_are_given() -> None:
    for attack in ("{{ messages.append(1) }}", "{{ messages.__class__.__mro__ }}", "{{ namespace(_x=1) }}", "{{ ''.__class__ }}"):
        found = with_template(attack + CHATML)
        preview = found.preview(chat("u:q", "a:x"))
        assert preview.skip is not None or "class" not in preview.text
