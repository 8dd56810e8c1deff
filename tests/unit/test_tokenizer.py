"""Finding and reading tokenizer files."""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from arrowtune.data.config import DataConfig, TokenizerConfig
from arrowtune.data.convert import Conversion
from arrowtune.data.render import RenderSpec
from arrowtune.data.tokenizer import load_tokenizer, read_tokenizer
from arrowtune.errors import ConfigError, RenderError, StoreError
from support.assets import tokenizer_folder
from support.render import CHATML, tokenizer


def _folder(tmp_path: Path, **config: object) -> Path:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    added = [{"id": 2, "content": "<|end|>", "special": True, "rstrip": True}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": added}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_what_is_read(tmp_path: Path) -> None:
    files = read_tokenizer(_folder(tmp_path, eos_token={"content": "<|end|>"}, bos_token=None, chat_template="{{ x }}"))
    assert (files.vocab_size, files.special_tokens, files.chat_template) == (3, {"eos_token": "<|end|>"}, "{{ x }}")
    assert (files.added[0].special, files.added[0].rstrip, files.added[0].lstrip) == (True, True, False)
    assert pickle.loads(pickle.dumps(files)) == files


@pytest.mark.parametrize(
    ("name", "alphabet", "normalizer"),
    [("qwen3", "bytes", "nfc"), ("llama3_1", "bytes", "none"), ("gemma3", "pieces", "none"), ("deepseek_v3", "bytes", "none")],
)
def test_kinds_of_tokenizers(name: str, alphabet: str, normalizer: str) -> None:
    assert (tokenizer(name).alphabet, tokenizer(name).normalizer) == (alphabet, normalizer)


def test_which_template_goes_first(tmp_path: Path) -> None:
    folder = _folder(tmp_path, chat_template=[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}])
    assert read_tokenizer(folder).chat_template == "d"
    (folder / "chat_template.jinja").write_text("from the file")
    assert read_tokenizer(folder).chat_template == "from the file"
    (tmp_path / "mine.jinja").write_text("mine")
    assert read_tokenizer(folder, str(tmp_path / "mine.jinja")).chat_template == "mine"
    assert read_tokenizer(folder, "{{ messages }}").chat_template == "{{ messages }}"
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        read_tokenizer(folder, "nowhere.jinja")
    assert caught.value.problems[0].path == "tokenizer.chat_template"


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=r"there is no tokenizer\.json"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(RenderError, match="cannot be read"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(RenderError, match="has no vocabulary"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/folder", "nobody/has-this-model"])
def test_an_unknown_model_is_one_sentence(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        load_tokenizer(TokenizerConfig(), path, cache=tmp_path)
    assert caught.value.problems[0].path == "model.path"
    assert "\n" not in caught.value.message


def test_an_empty_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder holds no tokenizer"):
        load_tokenizer(TokenizerConfig(path=str(tmp_path)), "tiny", cache=tmp_path / "cache")


def test_other_forms_are_converted_once_in_a_process_of_their_own(tmp_path: Path) -> None:
    tree = json.loads((tokenizer_folder("qwen3") / "tokenizer.json").read_bytes())
    source, cache = tmp_path / "source", tmp_path / "cache"
    source.mkdir()
    vocab = {token: number for token, number in tree["model"]["vocab"].items() if number < 256}
    (source / "vocab.json").write_text(json.dumps({**vocab, "<|endoftext|>": 256}))
    (source / "merges.txt").write_text("#version: 0.2\n")
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "chat_template": CHATML}))
    first = load_tokenizer(TokenizerConfig(), str(source), cache=cache)
    assert first.vocab_size == 257
    assert first.chat_template == CHATML
    marker = first.folder / "still-the-same"
    marker.touch()
    assert load_tokenizer(TokenizerConfig(), str(source), cache=cache) == first
    assert marker.exists()


def test_a_conversion_is_made_again_when_any_file_it_reads_changed(tmp_path: Path) -> None:
    names = ["added_tokens.json", "special_tokens_map.json", "config.json", "tokenizer_config.json", "vocab.json", "merges.txt"]
    names += ["spiece.model", "chat_template.jinja", "notes.md", "model.gguf"]
    for name in names:
        (tmp_path / name).write_text("{}")

    def inputs() -> dict[str | None, object]:
        return {gguf: Conversion("model.path", tmp_path, gguf, False).inputs() for gguf in (None, "model.gguf")}

    for name in names:
        before = inputs()
        (tmp_path / name).write_text("{ }")
        changed = {gguf for gguf, found in inputs().items() if found != before[gguf]}
        assert changed == {"notes.md": set(), "model.gguf": {"model.gguf"}}.get(name, {None, "model.gguf"}), name


def test_code_is_an_input_only_where_it_may_run(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "my_rules.py").write_text("")
    found = [[name for name, *_ in Conversion("model.path", tmp_path, None, trust).inputs()] for trust in (False, True)]
    assert found == [["vocab.json"], ["my_rules.py", "vocab.json"]]


def test_a_folder_of_a_model_without_a_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="the folder holds no tokenizer"):
        load_tokenizer(TokenizerConfig(path=str(tmp_path)), "tiny", cache=tmp_path / "cache")
    with pytest.raises(ConfigError, match=r"there is no some\.gguf"):
        load_tokenizer(TokenizerConfig(), str(tmp_path), cache=tmp_path / "cache", gguf_file="some.gguf")


def test_a_cache_that_cannot_hold_a_conversion_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(StoreError, match=f"the cache folder {tmp_path / 'cache'} cannot be made"):
        load_tokenizer(TokenizerConfig(path=str(tmp_path)), "tiny", cache=tmp_path / "cache")


def test_files_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    files = read_tokenizer(folder)
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(RenderError, match=r"chat_template\.jinja cannot be read"):
        read_tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(RenderError, match=r"tokenizer\.json cannot be read: No such file"):
        files.digests()
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {}}, "added_tokens": [{"content": "x"}]}')
    with pytest.raises(RenderError, match="is not as tokenizers write it: it has no 'id'"):
        read_tokenizer(folder)


def test_identity_names_what_changed(tmp_path: Path) -> None:
    files = read_tokenizer(_folder(tmp_path, chat_template=CHATML))
    base = RenderSpec.of(files, DataConfig(), TokenizerConfig())
    assert base.identity() == base.with_engine(False).identity()

    def changed(spec: RenderSpec) -> set[str]:
        before, after = base.identity(), spec.identity()
        return {name for name in before if before[name] != after[name]}

    assert changed(replace(base, files=replace(files, chat_template="x"))) == {"chat_template"}
    assert changed(replace(base, template_kwargs={"enable_thinking": False})) == {"template_kwargs"}
    assert changed(replace(base, max_length=7, overlong="drop")) == {"max_length", "overlong"}
    before = base.identity()
    (tmp_path / "tokenizer.json").write_text((tmp_path / "tokenizer.json").read_text() + " ")
    assert {name for name, value in base.identity().items() if before[name] != value} == {"tokenizer"}


def test_nothing_heavy_is_imported() -> None:
    import subprocess

    code = "import sys, arrowtune.data.render, arrowtune.data.formats;"
    code += "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("tail", ["", ', "ignore_merges": false', ', "later": {"x": ["]"]}'])
def test_merges_are_passed_over_only_where_they_stand_last(tmp_path: Path, tail: str) -> None:
    vocab = {'"merges":[': 0, "]": 1, "}}": 2, "b": 3}
    merges = [["]", "]"], ['"merges":', "["], ["}", "}"]]
    text = '{"added_tokens": [], "model": {"type": "BPE", "vocab": %s, "merges": %s%s}}\n'
    (tmp_path / "tokenizer.json").write_text(text % (json.dumps(vocab), json.dumps(merges), tail))
    files = read_tokenizer(tmp_path)
    assert files.vocab_size == 4
    assert files.vocabulary() == vocab


def test_a_file_that_ends_inside_its_merges_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}, "merges": [["a", "b"], ["c"]')
    with pytest.raises(RenderError, match="cannot be read"):
        read_tokenizer(tmp_path)
