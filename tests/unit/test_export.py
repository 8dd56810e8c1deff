"""Completing an export folder: every file that readers look for, valid, in place at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from arrowtune.errors import ExportError
from arrowtune.training.export import finish_export, prune_exports
from support.assets import TINY


def weights(folder: Path, dtype: str = "float32", generation: dict[str, Any] | None = None) -> Path:
    folder.mkdir()
    (folder / "generation_config.json").write_text(json.dumps(generation or {}))
    save_file({"w": np.zeros((2, 2), np.float32)}, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": dtype}))
    return folder


def finish(tmp_path: Path, partial: Path, **changes: Any) -> tuple[Path, list[str]]:
    final = tmp_path / "export"
    settings = {"tokenizer_folder": TINY, "chat_template": "{{ messages }}", "stop_token_ids": (7, 9)} | changes
    return final, finish_export(partial, final, **settings)


def test_everything_is_in_place_and_nothing_is_left_aside(tmp_path: Path) -> None:
    final, notes = finish(tmp_path, weights(tmp_path / "partial"))
    assert notes == []
    assert not (tmp_path / "partial").exists()
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= {
        file.name for file in final.iterdir()
    }


def test_B82_sampling_settings_without_sampling_are_mended_with_a_note(tmp_path: Path) -> None:
    from transformers import GenerationConfig

    base = {"do_sample": False, "temperature": 0.9, "top_p": 0.5, "max_length": 100}
    final, notes = finish(tmp_path, weights(tmp_path / "partial", generation=base))
    assert len(notes) == 2
    assert "temperature" in notes[0]
    settings = GenerationConfig.from_pretrained(final)
    settings.save_pretrained(tmp_path / "again")
    assert settings.max_length == 100


def test_stop_tokens_come_first_and_the_base_model_keeps_its_own(tmp_path: Path) -> None:
    final, _ = finish(tmp_path, weights(tmp_path / "partial", generation={"eos_token_id": [9, 4]}))
    assert json.loads((final / "generation_config.json").read_text())["eos_token_id"] == [7, 9, 4]


def test_B80_weights_that_are_not_what_the_configuration_says_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="says bfloat16"):
        finish(tmp_path, weights(tmp_path / "partial", "bfloat16"))
    assert not (tmp_path / "export").exists()


def test_an_older_export_is_replaced_and_a_foreign_folder_is_not(tmp_path: Path) -> None:
    finish(tmp_path, weights(tmp_path / "one"))
    (tmp_path / "export" / "old.txt").write_text("of the older export")
    final, _ = finish(tmp_path, weights(tmp_path / "two"))
    assert not (final / "old.txt").exists()
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter.txt").write_text("precious")
    (foreign / "config.json").write_text("{}")  # any project may have one
    with pytest.raises(ExportError, match="not written by an export"):
        finish_export(weights(tmp_path / "three"), foreign, tokenizer_folder=TINY, chat_template=None, stop_token_ids=())
    assert (foreign / "chapter.txt").read_text() == "precious"


def test_exports_of_the_run_are_pruned_like_checkpoints(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8, 10):
        finish_export(
            weights(tmp_path / "partial"), tmp_path / f"export-{step}",
            tokenizer_folder=TINY, chat_template=None, stop_token_ids=(), about={"step": step},
        )  # fmt: skip
    (tmp_path / "export-1").mkdir()
    (tmp_path / "export-1" / "precious").write_text("not ours: no marker")
    (tmp_path / "export-best").mkdir()
    prune_exports(tmp_path, keep=3, step=10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export-1", "export-10", "export-6", "export-8", "export-best"]
    # Continued from further back: what lies ahead is of the run that was left.
    prune_exports(tmp_path, keep=2, step=6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export-1", "export-10", "export-6", "export-best"]


def test_a_tokenizer_with_code_of_its_own_brings_it(tmp_path: Path) -> None:
    source = tmp_path / "tokenizer"
    source.mkdir()
    (source / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    (source / "tokenization_mine.py").write_text("class Mine: ...")
    auto_map = {"AutoTokenizer": ["tokenization_mine.Mine", None]}
    (source / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto_map}))
    final, _ = finish(tmp_path, weights(tmp_path / "partial"), tokenizer_folder=source)
    assert (final / "tokenization_mine.py").is_file()
