"""Ranks for tests, as processes of one fork server that has the heavy imports done: a start costs a second, not eight."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint",
        "torch.distributed.checkpoint.state_dict",
        "transformers.models.auto.modeling_auto",
        "transformers.models.qwen3.modeling_qwen3",
        "transformers.models.llama.modeling_llama",
    ]
)


def run_ranks(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call `function(*arguments)` on `count` ranks of one process group.

    Args:
        count: How many.
        function: Importable: the ranks are other processes.
        arguments: Picklable, the same for every rank.

    Returns:
        What each rank returned, in rank order.

    Raises:
        RuntimeError: A rank failed; with its traceback.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(count)]
        ranks = [
            _CONTEXT.Process(target=_run, args=(rank, count, Path(folder), sender, function, arguments), daemon=True)
            for rank, (_, sender) in enumerate(pipes)
        ]
        for rank, (_, sender) in zip(ranks, pipes, strict=True):
            rank.start()
            sender.close()
        try:
            return _collect([receiver for receiver, _ in pipes])
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()
            for receiver, _ in pipes:
                receiver.close()


def _collect(receivers: list[Connection]) -> list[Any]:
    """The answers, or the first failure: a rank whose peer has failed waits for it for ever."""
    answers: dict[int, Any] = {}
    waiting: list[Any] = list(receivers)
    while waiting:
        for receiver in wait(waiting):
            rank = receivers.index(receiver)  # type: ignore[arg-type]
            waiting.remove(receiver)
            try:
                answers[rank], failure = receivers[rank].recv()
            except EOFError:
                failure = "it died without a word"
            if failure:
                raise RuntimeError(f"rank {rank} failed:\n{failure}")
    return [answers[rank] for rank in range(len(receivers))]


def _run(rank: int, count: int, folder: Path, sender: Connection, function: Callable[..., Any], arguments: Any) -> None:
    import torch
    import torch.distributed as dist

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    sys.stdout = sys.stderr
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), count), rank=rank, world_size=count)
        answer = function(*arguments)
        dist.destroy_process_group()
        sender.send((answer, None))
    except BaseException:  # noqa: BLE001 - whatever it is, the test must hear of it
        sender.send((None, traceback.format_exc()))
