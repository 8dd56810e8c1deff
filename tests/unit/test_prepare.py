"""Sources become stores: what is kept, what is counted, what is reused, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arrowtune.data.identity import read_history
from arrowtune.data.render import Renderer
from arrowtune.data.store import Store
from arrowtune.errors import EmptyDataset, FormatError, RenderError, StoreError
from arrowtune.types import Conversation, Message, Origin
from support.prepare import Notes, chat, chats, content, prepare, spec, write_big, write_lines

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def settle(path: Path) -> Path:
    """Wait until the file's times tell any later change."""
    while time.time_ns() - path.stat().st_ctime_ns < 50_000_000:
        time.sleep(0.01)
    return path


def test_a_store_holds_what_the_renderer_gives_in_source_order(tmp_path: Path) -> None:
    rows = chats(30)
    write_lines(tmp_path / "data" / "b.jsonl", rows[20:])
    write_lines(tmp_path / "data" / "a.jsonl", rows[:20])
    store = Store(prepare(tmp_path / "data", tmp_path / "cache").path)
    turns = [tuple(Message(turn["role"], turn["content"]) for turn in row["messages"]) for row in rows]
    expected = Renderer(spec()).encode([Conversation(messages, Origin("x", k)) for k, messages in enumerate(turns)])
    fetched = store.fetch(np.arange(30))
    assert np.array_equal(fetched.input_ids, expected.input_ids)
    assert np.array_equal(fetched.loss_weights, expected.loss_weights)
    assert np.array_equal(fetched.offsets, expected.offsets)
    assert [str(store[row].origin) for row in (0, 19, 20, 29)] == ["a.jsonl:1", "a.jsonl:20", "b.jsonl:1", "b.jsonl:10"]
    assert store.manifest["rows_read"] == store.manifest["rows"] == 30
    assert [(file["name"], file["rows"]) for file in store.manifest["sources"]] == [("a.jsonl", 20), ("b.jsonl", 10)]


def test_arrow_reads_the_data_files(tmp_path: Path) -> None:
    prepared = prepare(write_lines(tmp_path / "rows.jsonl", chats(5)), tmp_path / "cache")
    table = pa.ipc.open_file(prepared.store_path / "data-00000.arrow").read_all()
    assert table.num_rows == 5
    assert table.schema.field("input_ids").type.value_type == pa.int32()
    assert table.schema.field("loss_weights").type.value_type == pa.uint8()
    assert table["line"].to_pylist() == [1, 2, 3, 4, 5]


def test_skipped_rows_are_counted_by_reason_with_their_addresses(tmp_path: Path) -> None:
    rows: list[Any] = [*chats(200), '{"messages": [', {"messages": [{"role": "user", "content": "hi"}]}, chat("a", "b")]
    prepared = prepare(write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "cache")
    assert (prepared.rows_read, prepared.rows) == (203, 201)
    assert prepared.skipped == {"bad_row": 1, "no_assistant_turn": 1}
    shown = Store(prepared.path).manifest["skipped_rows"]
    assert [(skip["reason"], skip["file"], skip["row"], skip["line"]) for skip in shown] == [
        ("bad_row", "rows.jsonl", 200, 201),
        ("no_assistant_turn", "rows.jsonl", 201, 202),
    ]


def test_the_json_object_has_the_documented_fields(tmp_path: Path) -> None:
    prepared = prepare(write_lines(tmp_path / "rows.jsonl", chats(3)), tmp_path / "cache", role="eval")
    fields = "name role path identity rows_read rows skipped tokens trained_tokens reused seconds tokens_per_second"
    assert list(prepared.to_json()) == fields.split()
    assert prepared.role == "eval"
    store = Store(prepared.path)
    assert prepared.tokens == store.lengths.sum()
    assert prepared.trained_tokens == store.trained_tokens.sum() > 0
    assert store.name == "chats"


def test_a_second_prepare_reuses_the_store_and_reads_nothing(tmp_path: Path) -> None:
    path = settle(write_lines(tmp_path / "rows.jsonl", chats(50)))
    first = prepare(path, tmp_path / "cache")
    # Unreadable now, unless one is allowed everything: a warm start must not need to read it.
    path.chmod(0)
    notes = Notes()
    second = prepare(path, tmp_path / "cache", progress=notes)
    assert (first.reused, second.reused, notes.units) == (False, True, 0)
    assert replace(second, reused=False, seconds=0.0, tokens_per_second=0.0) == replace(first, seconds=0.0, tokens_per_second=0.0)


def test_the_same_content_at_another_time_and_place_is_found(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", chats(50))
    first = prepare(path, tmp_path / "cache")
    os.utime(path, ns=(1, 1))
    assert prepare(path, tmp_path / "cache").reused
    other = tmp_path / "elsewhere" / "other.jsonl"
    other.parent.mkdir()
    shutil.copy(path, other)
    again = prepare(other, tmp_path / "cache")
    assert again.reused
    assert again.path == first.path


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rendering": {"template": CHATML + " "}}, ["chat_template"]),
        ({"rendering": {"template": CHATML, "max_length": 64}}, ["max_length"]),
        ({"rendering": {"template": CHATML, "train_on": "last_assistant_message"}}, ["train_on"]),
        ({"source": {"limit": 10}}, ["limit", "source"]),
        ({"rows": 51}, ["source"]),
    ],
)
def test_B44_what_changes_the_content_changes_the_identity_and_is_named(
    tmp_path: Path, change: dict[str, Any], named: list[str]
) -> None:
    path = write_lines(tmp_path / "rows.jsonl", chats(50))
    before = prepare(path, tmp_path / "cache", rendering=spec(CHATML))
    write_lines(path, chats(change.get("rows", 50)))
    notes = Notes()
    after = prepare(
        path,
        tmp_path / "cache",
        rendering=spec(**change.get("rendering", {"template": CHATML})),
        source=change.get("source"),
        progress=notes,
    )
    assert not after.reused
    assert after.identity != before.identity
    assert notes.notes == [f"chats: prepared anew, since this changed: {', '.join(named)}"]


def test_B44_what_does_not_change_the_content_reuses_the_store(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", chats(50))
    first = prepare(path, tmp_path / "cache", rendering=spec(fast=True))
    again = prepare(path, tmp_path / "cache", rendering=spec(fast=False), workers=4, name="other", role="eval", max_bad_rows=0.5)
    assert again.reused
    assert again.path == first.path


def test_the_engine_and_the_number_of_workers_do_not_change_a_byte(tmp_path: Path) -> None:
    path = write_big(tmp_path / "rows.jsonl", 5)
    alone = prepare(path, tmp_path / "one", rendering=spec(fast=False), workers=1)
    many = prepare(path, tmp_path / "many", rendering=spec(), workers=3)
    assert content(alone.store_path) == content(many.store_path)
    assert not list((tmp_path / "many" / "units").iterdir())


def test_data_and_manifest_know_nothing_of_time_host_and_place(tmp_path: Path) -> None:
    prepared = prepare(write_lines(tmp_path / "rows.jsonl", chats(5)), tmp_path / "cache")
    for name, data in content(prepared.store_path).items():
        assert str(tmp_path).encode() not in data, name
    history = read_history(prepared.store_path)
    assert {"name", "role", "path", "host", "finished", "workers", "counts", "seconds"} == set(history)


def test_a_limit_takes_the_first_rows_over_all_files(tmp_path: Path) -> None:
    for name, rows in (("a", chats(10)), ("b", chats(20)[10:]), ("c", chats(30)[20:])):
        write_lines(tmp_path / "data" / f"{name}.jsonl", rows)
    prepared = prepare(tmp_path / "data", tmp_path / "cache", source={"limit": 15})
    store = Store(prepared.path)
    assert (len(store), prepared.rows_read) == (15, 15)
    assert str(store[14].origin) == "b.jsonl:5"
    assert [file["name"] for file in store.manifest["sources"]] == ["a.jsonl", "b.jsonl"]
    # A row beyond the limit does not matter.
    write_lines(tmp_path / "data" / "b.jsonl", [*chats(20)[10:], chat("new", "row")])
    assert prepare(tmp_path / "data", tmp_path / "cache", source={"limit": 15}).identity == prepared.identity


def test_fractional_weights_of_one_unit_make_the_whole_store_float(tmp_path: Path) -> None:
    write_big(tmp_path / "data.jsonl", 5)
    weighted = chat("q", "a")
    weighted["messages"][1]["weight"] = 0.25
    with (tmp_path / "data.jsonl").open("a") as file:
        file.write(json.dumps(weighted) + "\n")
    store = Store(prepare(tmp_path / "data.jsonl", tmp_path / "cache").path)
    assert store.manifest["loss_weights"] == "float32"
    assert set(np.unique(store[len(store) - 1].loss_weights)) == {0.0, 0.25}
    assert set(np.unique(store[0].loss_weights)) == {0.0, 1.0}
    assert store.loss_weight_sums[-1] == pytest.approx(0.25 * store.trained_tokens[-1])


def test_force_recache_makes_the_same_store_again(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", chats(5))
    first = prepare(path, tmp_path / "cache")
    mapped = Store(first.path)
    before = content(first.store_path)
    again = prepare(path, tmp_path / "cache", force_recache=True)
    assert (again.reused, again.identity) == (False, first.identity)
    assert content(again.store_path) == before
    assert len(mapped[4].input_ids) == mapped.lengths[4]


def test_a_private_store_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", chats(5))
    prepared = prepare(path, tmp_path / "cache", private=tmp_path / "run" / "stores", disable_cache=True)
    assert (tmp_path / "run").resolve() in prepared.store_path.resolve().parents
    assert not (tmp_path / "cache" / "stores").exists()
    assert not (tmp_path / "cache" / "units").exists()


def test_a_store_that_cannot_be_read_is_made_anew_and_said_so(tmp_path: Path) -> None:
    path = settle(write_lines(tmp_path / "rows.jsonl", chats(5)))
    first = prepare(path, tmp_path / "cache")
    expected = content(first.store_path)
    data = first.store_path / "data-00000.arrow"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(StoreError, match="torn"):
        Store(first.path)
    notes = Notes()
    again = prepare(path, tmp_path / "cache", progress=notes)
    assert not again.reused
    assert "torn" in notes.notes[0]
    assert content(again.store_path) == expected


def test_B42_sources_without_rows(tmp_path: Path) -> None:
    empty = write_lines(tmp_path / "empty.jsonl", [])
    with pytest.raises(EmptyDataset, match="holds no rows"):
        prepare(empty, tmp_path / "cache")
    with pytest.raises(EmptyDataset, match="0 rows read"):
        prepare(empty, tmp_path / "cache", source={"format": "messages"})
    unusable = [{"messages": [{"role": "user", "content": "hi"}]}] * 3 + [{"messages": []}]
    with pytest.raises(EmptyDataset, match="4 rows read, 0 used, skipped: 3 no_assistant_turn, 1 empty"):
        prepare(write_lines(tmp_path / "rows.jsonl", unusable), tmp_path / "cache")


def test_B42_an_empty_file_among_others_is_fine(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    columns = pa.schema([("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))])
    for name, rows in (("a", []), ("b", chats(3)), ("c", [])):
        pq.write_table(pa.Table.from_pylist(rows, columns), tmp_path / "data" / f"{name}.parquet")
    store = Store(prepare(tmp_path / "data", tmp_path / "cache").path)
    assert [(file["name"], file["rows"]) for file in store.manifest["sources"]] == [
        ("a.parquet", 0),
        ("b.parquet", 3),
        ("c.parquet", 0),
    ]


def test_B33_too_many_bad_rows_are_an_error_with_the_first_ten_addresses(tmp_path: Path) -> None:
    rows: list[Any] = [*chats(100), *['{"messages": 7}'] * 12]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    with pytest.raises(FormatError) as caught:
        prepare(path, tmp_path / "cache", max_bad_rows=0.1)
    assert "12 of 112 rows" in caught.value.message
    assert [line.split(": ")[0].strip() for line in caught.value.message.splitlines()[1:]] == [
        f"rows.jsonl:{line}" for line in range(101, 111)
    ]
    assert prepare(path, tmp_path / "cache", max_bad_rows=0.2).rows == 100
    with pytest.raises(FormatError):
        prepare(path, tmp_path / "cache", max_bad_rows=0.1)


def test_B33_a_file_of_nothing_but_bad_rows(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"rows\.jsonl:1: not valid JSON"):
        prepare(write_lines(tmp_path / "rows.jsonl", ["nonsense"] * 3), tmp_path / "cache")


def test_an_array_that_is_cut_off_costs_one_row_and_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(chats(300), indent=1)[:-60])
    prepared = prepare(path, tmp_path / "cache")
    assert (prepared.rows, prepared.skipped) == (299, {"bad_row": 1})
    [skip] = Store(prepared.path).manifest["skipped_rows"]
    assert (skip["row"], skip["line"]) == (299, None)
    assert "ends inside this row" in skip["detail"]


def test_B40_a_gigantic_row_is_cut_and_the_rest_is_unaffected(tmp_path: Path) -> None:
    rows = [*chats(10), chat("long", "and on " * 900_000), *chats(20)[10:]]
    store = Store(prepare(write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "cache", rendering=spec(max_length=64)).path)
    small = Store(
        prepare(write_lines(tmp_path / "small.jsonl", chats(20)), tmp_path / "cache", rendering=spec(max_length=64)).path
    )
    assert store.lengths[10] == 64
    assert np.array_equal(np.delete(store.lengths, 10), small.lengths)
    assert store.manifest["counts"]["truncated"] == 1


def test_an_overlong_row_that_is_an_error_is_told_by_its_line(tmp_path: Path) -> None:
    rows = [*chats(3), chat("long", "and on " * 100)]
    with pytest.raises(RenderError, match=r"rows\.jsonl:4 has \d+ tokens, more than data\.max_length 64"):
        prepare(write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "cache", rendering=spec(max_length=64, overlong="raise"))


def test_a_template_that_proves_no_span(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", chats(3))
    with pytest.raises(RenderError, match="template"):
        prepare(path, tmp_path / "cache", rendering=spec("{% for m in messages %}{{ m.content | upper }}{% endfor %}"))


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", chats(3))
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(StoreError, match=f"the cache folder {tmp_path / 'cache'} cannot be") as caught:
        prepare(path, tmp_path / "cache")
    assert "data.cache_dir" in caught.value.hint


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = ["tests"]
from support.prepare import prepare
print("once", prepare(Path({data!r}), Path({cache!r}), workers=2).rows)
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""


@pytest.mark.parametrize("how", ["script", "command", "stdin", "daemon"])
def test_workers_need_no_main_guard(tmp_path: Path, how: str) -> None:
    data = write_big(tmp_path / "rows.jsonl", 5)
    code = SCRIPT.format(data=str(data), cache=str(tmp_path / "cache"))
    if how == "daemon":
        code = f"import multiprocessing as m\nm.current_process()._config['daemon'] = True\n{code}"
    script = tmp_path / "script.py"
    script.write_text(code)
    arguments, told = {"command": (["-c", code], None), "stdin": ([], code)}.get(how, ([str(script)], None))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, *arguments], input=told, capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"once {len(data.read_text().splitlines())}"]


@pytest.mark.parametrize("name", ["images", "image", "pixel_values", "videos"])
def test_a_row_that_comes_with_media_is_no_text_row(tmp_path: Path, name: str) -> None:
    rows = [
        chat("q", "a"),
        {**chat("<image>\nWhat is it?", "A cat."), name: ["cat.png"]},
        {**chat("q", "b"), name: []},
        {**chat("q", "c"), name: None},
    ]
    store = prepare(write_lines(tmp_path / "rows.jsonl", rows), tmp_path, max_bad_rows=1)
    assert store.rows == 3
    with pytest.raises(FormatError, match=f"{name} holds media; only text is trained"):
        prepare(write_lines(tmp_path / "again.jsonl", rows), tmp_path)
