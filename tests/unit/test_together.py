"""What one rank does alone fails on all, as the same error, in real processes."""

from __future__ import annotations

import pytest

from arrowtune.errors import CheckpointError
from arrowtune.training.together import leader, together
from support.ranks import run_ranks
from support.together import OneRank, fail_alone, fail_somewhere, fail_unforeseen


def test_one_rank_gets_its_value_or_its_own_error() -> None:
    assert leader(OneRank(), lambda: 7) == 7
    assert together(OneRank(), lambda: 7) == [7]
    with pytest.raises(KeyError, match="lm_head"):
        leader(OneRank(), lambda: {}["lm_head"])
    error = CheckpointError("no room", hint="make some")
    with pytest.raises(CheckpointError) as caught:
        leader(OneRank(), lambda: (_ for _ in ()).throw(error))
    assert caught.value is error


def test_every_rank_raises_what_rank_0_raised_alone_and_none_waits_for_it() -> None:
    told = run_ranks(2, fail_alone)
    assert told == [("ConfigError", "metrics.jsonl cannot be written", "choose another output_dir", 2)] * 2


def test_every_rank_raises_what_any_rank_raised() -> None:
    assert run_ranks(2, fail_somewhere) == [("CheckpointError", "rank 1 has no room", "", 5)] * 2


def test_what_nobody_foresaw_is_told_to_the_others() -> None:
    assert run_ranks(2, fail_unforeseen) == ["KeyError: 'lm_head'", "WorkerLost: rank 0 failed: KeyError: 'lm_head'"]
