"""`prepare --explain`: which input of the identity is another one, from the run file to the answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arrowtune import SFTConfig
from arrowtune.data.explain import Explanation
from arrowtune.data.tokenizer import read_tokenizer
from arrowtune.ingest import explain, ingest
from arrowtune.resolve import resolve
from arrowtune.view.explained import explained_text
from support.assets import TINY
from support.cli import arrowtune
from support.prepare import chat, chats, write_lines

Tree = dict[str, Any]


class Run:
    """A run file with a template, a tokenizer and two files of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = folder / "tokenizer"
        self.tokenizer.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (self.tokenizer / name).write_bytes((TINY / name).read_bytes())
        template = read_tokenizer(TINY).chat_template
        assert template is not None
        (folder / "chat.jinja").write_text(template)
        write_lines(folder / "data" / "a.jsonl", chats(20))
        write_lines(folder / "data" / "b.jsonl", chats(30)[20:])
        self.tree: Tree = {
            "data": {
                "train": [{"path": str(folder / "data"), "name": "chats"}],
                "cache_dir": str(folder / "cache"),
                "max_length": 256,
            },
            "tokenizer": {"path": str(self.tokenizer), "chat_template": str(folder / "chat.jinja")},
        }

    @property
    def config(self) -> SFTConfig:
        return SFTConfig.parse(self.tree)

    def prepare(self) -> bool:
        """Whether the store was there."""
        [store] = ingest(resolve(self.config, devices=1, gpu=False)).stores
        return store.reused

    def explain(self) -> Explanation:
        [found] = explain(self.config)
        return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def edit_template(run: Run) -> None:
    file = run.folder / "chat.jinja"
    file.write_text(file.read_text() + " ")


def add_special_token(run: Run) -> None:
    file = run.tokenizer / "tokenizer.json"
    tree = json.loads(file.read_text())
    top = max(token["id"] for token in tree["added_tokens"])
    tree["added_tokens"].append({**tree["added_tokens"][-1], "id": top + 1, "content": "<|new|>"})
    file.write_text(json.dumps(tree))


def set_data(**fields: Any) -> Callable[[Run], None]:
    return lambda run: run.tree["data"].update(fields)


def set_tokenizer(**fields: Any) -> Callable[[Run], None]:
    return lambda run: run.tree["tokenizer"].update(fields)


CHANGES = {
    "one character of the template": (edit_template, ["chat_template"]),
    "a special token": (add_special_token, ["tokenizer"]),
    "the mask": (set_data(train_on="last_assistant_message"), ["train_on"]),
    "the length": (set_data(max_length=255), ["max_length"]),
    "what becomes of long rows": (set_data(overlong="drop"), ["overlong"]),
    "arguments of the template": (set_tokenizer(template_kwargs={"x": 1}), ["template_kwargs"]),
    "a row": (lambda run: write_lines(run.folder / "data" / "b.jsonl", [chat("new", "row")]), ["source"]),
}


@pytest.mark.parametrize("what", CHANGES)
def test_B44_a_change_is_prepared_anew_and_explained(run: Run, what: str) -> None:
    change, named = CHANGES[what]
    assert not run.prepare()
    assert run.explain().reused
    change(run)
    found = run.explain()
    assert [difference.input for difference in found.differs] == named
    assert not found.reused
    assert found.nearest is not None
    assert not run.prepare()
    assert run.explain().reused


def test_B44_what_decides_no_id_and_no_mask_is_no_change(run: Run) -> None:
    run.prepare()
    run.tree |= {"batch": {"examples": 3}, "optimizer": {"lr": 1.0}, "output_dir": "elsewhere", "name": "other"}
    run.tree["data"] |= {"workers": 7, "max_bad_rows": 0.5}
    run.tree["tokenizer"] |= {"fast": False}
    (run.folder / "data").rename(run.folder / "moved")
    run.tree["data"]["train"][0] |= {"path": str(run.folder / "moved"), "name": "other"}
    assert run.explain().reused
    assert run.prepare()


def test_B45_using_a_tokenizer_does_not_change_the_identity(run: Run) -> None:
    before = run.explain().identity
    from tokenizers import Tokenizer

    live = Tokenizer.from_file(str(run.tokenizer / "tokenizer.json"))
    live.enable_truncation(4)
    live.encode("the quick brown fox jumps over the lazy dog")
    run.prepare()
    assert run.explain().identity == before
    code = "import sys, json; from arrowtune import SFTConfig; from arrowtune.ingest import explain; "
    code += "print(explain(SFTConfig.parse(json.loads(sys.argv[1])))[0].identity)"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(run.tree)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == before


def test_nothing_is_prepared(run: Run) -> None:
    found = run.explain()
    assert (found.store, found.nearest, found.because) == (None, None, "no store of this source was made so far")
    assert not (run.folder / "cache" / "stores").exists()
    assert not (run.folder / "cache" / "units").exists()


def test_files_that_differ_are_named(run: Run) -> None:
    run.prepare()
    data = run.folder / "data"
    write_lines(data / "a.jsonl", chats(7))
    (data / "b.jsonl").rename(data / "c.jsonl")
    [difference] = run.explain().differs
    assert difference.files == ("a.jsonl has other content", "c.jsonl is new", "b.jsonl is gone")


def test_a_limit_takes_other_rows(run: Run) -> None:
    run.prepare()
    run.tree["data"]["train"][0]["limit"] = 3
    found = {difference.input: difference.files for difference in run.explain().differs}
    assert found == {"limit": (), "source": ("other rows are taken",)}


def test_the_nearest_store_is_the_one_with_the_fewest_differences(run: Run) -> None:
    for length in (64, 128):
        run.tree["data"]["max_length"] = length
        run.prepare()
    edit_template(run)
    run.prepare()
    run.tree["data"]["max_length"] = 100
    assert [(one.input, one.was, one.now) for one in run.explain().differs] == [("max_length", "128", "100")]


def test_a_store_that_is_made_anyway_and_one_that_is_torn(run: Run) -> None:
    run.prepare()
    store = Path(run.explain().store or "")
    run.tree["data"]["force_recache"] = True
    assert (run.explain().reused, run.explain().because) == (False, "data.force_recache makes every store again")
    run.tree["data"] |= {"force_recache": False, "disable_cache": True}
    assert run.explain().because == "data.disable_cache keeps every store in the run's folder"
    run.tree["data"]["disable_cache"] = False
    (store / "lengths.npy").unlink()
    found = run.explain()
    assert not found.reused
    assert "torn" in found.because


def test_the_command(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(run.tree))
    run.prepare()
    done = arrowtune("prepare", file, "--explain", "--json", "data.max_length=64")
    [source] = json.loads(done.stdout)["sources"]
    assert [entry["input"] for entry in source["differs"]] == ["max_length"]
    run.tree["data"]["max_length"] = 64
    edit_template(run)
    lines = explained_text([run.explain().to_json()]).splitlines()
    assert lines[0] == "chats (train): would be prepared, since the nearest store was made otherwise"
    assert lines[1] == f"  {source['nearest']} is nearest; what differs:"
    assert lines[2].startswith("  chat_template  ")
    assert lines[3] == "  max_length     256 -> 64"
