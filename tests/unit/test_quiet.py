"""The progress bar of the GGUF reader is left out of stderr, and nothing else is."""

from __future__ import annotations

import sys

import pytest
from tqdm.auto import tqdm


def test_only_the_bar_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    from arrowtune.backends.fsdp.quiet import without_gguf_bar

    with without_gguf_bar():
        sys.stderr.write("before\n")
        for number in tqdm(range(3), desc="Converting and de-quantizing GGUF tensors..."):
            if number == 1:
                sys.stderr.write("between\n")
        sys.stderr.write("after\n")
    sys.stderr.write("outside\n")
    assert capsys.readouterr().err == "before\nbetween\nafter\noutside\n"
