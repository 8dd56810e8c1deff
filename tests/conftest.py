"""What holds for every test: no network, no cache of the person who runs it, a steady number of threads."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch or a tokenizer is imported anywhere, and inherited by every process that a test starts.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_WAIT_POLICY"] = "passive"
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# A shell that starts its jobs in the background has them ignore SIGINT, and every process of theirs after them.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No clock decides a test, and every run tries the same examples.
settings.register_profile("arrowtune", deadline=None, derandomize=True)
settings.load_profile("arrowtune")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stores of one test are not seen by another, nor left in the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ARROWTUNE_CACHE", str(folder))
    return folder
