"""Where the result of a command goes: to stdout, alone."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import typer


@contextmanager
def results() -> Iterator[TextIO]:
    """The real stdout, while descriptor 1 leads to stderr: a library or a worker that prints cannot spoil a result."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace") as out:
        os.dup2(2, 1)
        try:
            yield out
        finally:
            sys.stdout.flush()
            os.dup2(out.fileno(), 1)


def print_result(result: Any, out: TextIO) -> None:
    """Print a text, an object as JSON, or what prints itself to a rich console."""
    try:
        if callable(result):
            from rich.console import Console

            result(Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True))
        else:
            out.write(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False))
            out.write("\n")
        out.flush()
    except BrokenPipeError:
        # The reader has gone, as `head` does. Say nothing, and keep what is buffered from being flushed into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        raise typer.Exit(128 + signal.SIGPIPE) from None
