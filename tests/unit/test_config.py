"""The run file: every fault at once, with its path and a remedy; YAML 1.2; overrides; a round trip."""

from __future__ import annotations

from pathlib import Path

import pytest

from arrowtune.config import SFTConfig
from arrowtune.errors import ConfigError


@pytest.fixture
def run_file(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return path

    return write


def faults(path: Path, *overrides: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        SFTConfig.load(path, overrides)
    return {problem.path: f"{problem.message} {problem.hint}" for problem in caught.value.problems}


def test_all_faults_are_reported_at_once_with_their_paths(run_file) -> None:
    found = faults(
        run_file("""
        data:
          train: [{path: a.jsonl, wieght: 0.3}]
          max_length: "12"
        trian: {epochs: 1}
        train: {epochs: 1, steps: 2}
        track: [console, jsnl]
        """)
    )
    assert set(found) == {"data.train[0].wieght", "data.max_length", "trian", "train", "track[1].name"}
    assert "did you mean weight?" in found["data.train[0].wieght"]
    assert "did you mean train?" in found["trian"]
    assert "'12'" in found["data.max_length"]


def test_numbers_are_read_as_yaml_1_2(run_file) -> None:
    config = SFTConfig.load(run_file("optimizer: {lr: 1e-5}\nname: no\n"))
    assert config.optimizer.lr == 1e-5
    assert config.name == "no"


def test_overrides_reach_any_key_and_create_sections(run_file) -> None:
    path = run_file("data: {train: [a.jsonl, {path: b.jsonl}]}\n")
    config = SFTConfig.load(path, ["batch.examples=64", "data.train.1.path=c.jsonl", "optimizer.lr=2e-4", "model.path=tiny"])
    assert config.batch.examples == 64
    assert [source.path for source in config.data.train] == ["a.jsonl", "c.jsonl"]
    assert config.optimizer.lr == 2e-4


@pytest.mark.parametrize("override", ["batch", "=3", "data.train.7.path=x", "name.deep=1", "batch.examples=[1"])
def test_an_override_that_cannot_apply_is_named(run_file, override: str) -> None:
    assert faults(run_file("name: x\ndata: {train: [a]}\n"), override)


def test_a_misspelt_override_is_refused_like_a_misspelt_key(run_file) -> None:
    assert "did you mean examples?" in faults(run_file("name: x\n"), "batch.exampels=3")["batch.exampels"]


@pytest.mark.parametrize(
    ("text", "says"), [("[1, 2]", "mapping"), ("a: [1", "not valid YAML"), ("a: 1\na: 2\n", "not valid YAML")]
)
def test_a_file_that_is_no_run_file_says_why(run_file, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SFTConfig.load(run_file(text))


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run file"):
        SFTConfig.load(tmp_path / "nothing.yaml")


def test_every_train_source_has_a_weight_or_none(run_file) -> None:
    found = faults(run_file("data: {train: [{path: a, weight: 1.0}, {path: b}]}\n"))
    assert "give every train source a weight or none" in found["data"]


def test_dump_and_parse_are_inverse(run_file) -> None:
    config = SFTConfig.load(run_file("data: {train: [a, {path: b, columns: {messages: chat}}], eval: e}\ntrain: {epochs: 2}\n"))
    assert SFTConfig.parse(config.dump()) == config
