"""Derived numbers carry their reasons; contradictions between sections are all reported."""

from __future__ import annotations

import pytest

from arrowtune.config import SFTConfig
from arrowtune.errors import ConfigError
from arrowtune.resolve import base_name, resolve


def config(**sections: object) -> SFTConfig:
    return SFTConfig.parse({"data": {"train": ["a.jsonl"]}, **sections})


def test_every_derived_value_has_a_reason() -> None:
    run = resolve(config(), devices=1, gpu=False)
    assert run["batch.micro_tokens"] == 2048
    assert all(item.because for item in run.derived.values())


def test_micro_tokens_must_hold_the_longest_example() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(config(batch={"micro_tokens": 100}), devices=1, gpu=False)
    (problem,) = caught.value.problems
    assert problem.path == "batch.micro_tokens"
    assert "2048" in problem.hint


def test_adapters_alone_need_weights_that_others_have() -> None:
    run = config(model={"lora": {}}, export={"merge_lora": False})
    with pytest.raises(ConfigError) as caught:
        resolve(run, devices=1, gpu=False)
    assert [problem.path for problem in caught.value.problems] == ["export.merge_lora"]
    real = config(model={"path": "some/model", "lora": {}}, export={"merge_lora": False})
    assert resolve(real, devices=1, gpu=False)


def test_training_needs_a_source_and_preparing_does_not() -> None:
    nothing = SFTConfig.parse({})
    with pytest.raises(ConfigError, match="cannot be carried out"):
        resolve(nothing, devices=1, gpu=False)
    assert resolve(nothing, devices=1, gpu=False, for_training=False).sources == ()


def test_two_sources_of_one_role_cannot_share_a_name() -> None:
    data = {"train": ["x/chats.jsonl", "y/chats.jsonl"], "eval": ["z/chats.jsonl"]}
    with pytest.raises(ConfigError) as caught:
        resolve(SFTConfig.parse({"data": data}), devices=1, gpu=False)
    (problem,) = caught.value.problems
    assert problem.path == "data.train[1]"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/chats.jsonl.zst", "chats"),
        ("a/b/", "b"),
        ("corp/set", "set"),
        ("x.parquet", "x"),
        (".jsonl", ".jsonl"),
        ("v1.5.json.gz", "v1.5"),
    ],
)
def test_the_base_name_drops_the_suffixes_of_data_files(path: str, name: str) -> None:
    assert base_name(path) == name


def test_devices_beyond_the_machine_are_refused_on_gpus_only() -> None:
    assert resolve(config(launch={"devices_per_node": 4}), devices=1, gpu=False)["launch.devices_per_node"] == 4
    with pytest.raises(ConfigError):
        resolve(config(launch={"devices_per_node": 4}), devices=2, gpu=True)
