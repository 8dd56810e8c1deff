"""Data sets of the hub, as its own cache holds them after they were fetched once: no network is needed, and none is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arrowtune.data.config import SourceConfig
from arrowtune.data.sources import resolve_source
from arrowtune.errors import SourceError
from support.prepare import chats, prepare, write_lines

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files of `someone/talks`, at `main`, in a cache of the hub."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    home = tmp_path / "hub" / "datasets--someone--talks"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    snapshot = home / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    return snapshot


def table(path: Path, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(chats(count)), path)


def names(**source: Any) -> list[str]:
    return [file.name for file in resolve_source(SourceConfig(path="someone/talks", **source), "talks").files]


def test_splits_are_seen_from_names(hub: Path, tmp_path: Path) -> None:
    for number in range(2):
        table(hub / "data" / f"train-0000{number}-of-00002.parquet", 3)
    table(hub / "data" / "test-00000-of-00001.parquet", 2)
    (hub / "script.py").write_text("raise SystemExit('nothing of a data set is executed')")
    train = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    assert names() == names(split="train") == names(split="train[:50%]") == train
    assert names(split="test") == names(split="test", revision="main") == names(split="test", revision=COMMIT)
    with pytest.raises(SourceError, match="someone/talks has no split 'validation'") as raised:
        names(split="validation")
    assert "train, test" in raised.value.hint or "test, train" in raised.value.hint
    found = prepare("someone/talks", tmp_path / "cache", source={"split": "test"})
    assert (found.rows, prepare("someone/talks", tmp_path / "cache", source={"split": "test"}).reused) == (2, True)


def test_the_card_goes_before_names(hub: Path) -> None:
    for name in ("en/a.jsonl", "en/b.jsonl", "de/a.jsonl"):
        write_lines(hub / name, chats(1))
    (hub / "README.md").write_text(
        "---\nconfigs:\n- config_name: english\n  data_files:\n  - {split: train, path: en/a*}\n"
        "  - {split: held, path: [en/b*]}\n"
        "- config_name: german\n  data_files: de/*\n---\n# Talks\n"
    )
    assert names(subset="english") == ["en/a.jsonl"]
    assert names(subset="english", split="held") == ["en/b.jsonl"]
    assert names(subset="german") == ["de/a.jsonl"]
    with pytest.raises(SourceError, match="no subset is named, and someone/talks has english, german"):
        names()
    with pytest.raises(SourceError, match="there is no subset 'french'"):
        names(subset="french")


def test_a_subset_without_a_card_is_a_folder(hub: Path) -> None:
    for name in ("math/train.jsonl", "code/train.jsonl", "code/val.jsonl"):
        write_lines(hub / name, chats(1))
    assert names(subset="code", split="validation") == ["code/val.jsonl"]
    assert names(subset="math") == ["math/train.jsonl"]


def test_what_was_never_fetched_is_one_sentence(hub: Path) -> None:
    with pytest.raises(SourceError, match="there is no file or folder no/such, and it cannot be fetched from the hub") as raised:
        resolve_source(SourceConfig(path="no/such"), "x")
    assert "offline it must have been fetched before" in raised.value.hint
    with pytest.raises(SourceError, match=r"there is no file or folder data/a\.jsonl"):
        resolve_source(SourceConfig(path="data/a.jsonl"), "x")
