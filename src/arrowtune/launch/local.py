"""Start the ranks of a run on this machine, watch them, and bring back what rank 0 returns."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from arrowtune.errors import ArrowtuneError, Interrupted, WorkerLost
from arrowtune.launch.child import Task, resolve_entry, run_rank
from arrowtune.launch.hub import Hub, Outcome, cause, forwarded_signals, open_hub, stopped

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


_OUT_OF_MEMORY = "the kernel kills a process when memory runs out: a smaller batch.micro_tokens needs less"


def joined() -> bool:
    """Whether an outer launcher, such as torchrun, has made this process a rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launch(entry: str, payload: Any, *, devices: int, logs: Path | None = None) -> Any:
    """Call `entry(payload)` on every rank.

    One device, or an outer torchrun: in this process. Several: one process each, under torch elastic, without restarts.
    SIGTERM and SIGINT are passed on to the ranks, which save and end. Ranks never outlive this process.

    Args:
        entry: `module:function`, importable in a fresh process.
        payload: Picklable, small: ranks get addresses, not data.
        devices: Ranks on this machine.
        logs: Folder for `rank-N.log`; without it every rank writes to this process' stderr.

    Returns:
        What rank 0 returned.

    Raises:
        ArrowtuneError: What a rank raised, as it raised it.
        WorkerLost: A rank died, or failed in a way nobody foresaw.
    """
    if devices == 1 or joined():
        return resolve_entry(entry)(payload)
    with open_hub() as hub, forwarded_signals(hub), _quiet_elastic(), _no_main_script():
        task = Task(hub.address, os.getpid(), entry, pickle.dumps(payload), logs.absolute() if logs else None)
        failed = _run_elastic(task, devices, hub.folder)
        hub.drain()
    return _conclude(hub, failed, devices, logs)


def _run_elastic(task: Task, devices: int, scratch: Path) -> ChildFailedError | None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id=uuid.uuid4().hex,
        role="arrowtune",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="spawn",
        # The hub forwards the signals that ask for a clean end; elastic would kill after its own time-out.
        signals_to_handle="SIGQUIT",
        logs_specs=DefaultLogsSpecs(log_dir=str(scratch / "elastic")),
    )
    try:
        elastic_launch(config, run_rank)(task)
    except ChildFailedError as error:
        return error
    finally:
        os.environ.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)
    return None


def _conclude(hub: Hub, failed: ChildFailedError | None, devices: int, logs: Path | None) -> Any:
    """The result of rank 0, or the error that explains the others."""
    results = {outcome.rank: outcome for outcome in hub.outcomes}
    if all(rank in results and results[rank].kind == "done" for rank in range(devices)):
        return results[0].value
    if (end := stopped(hub.outcomes)) is not None:
        raise end
    found = cause(hub.outcomes)
    if hub.signals and (found is None or found.kind == "lost"):
        first, last = (signal.Signals(signum).name for signum in (hub.signals[0], hub.signals[-1]))
        how = f"at once by a second {last}" if len(hub.signals) > 1 else f"by {first} before it could save"
        raise Interrupted(hub.signals[0], f"stopped {how}; what was finished is kept, and the same command continues")
    if found is not None and found.kind != "lost":
        assert isinstance(found.value, ArrowtuneError)
        raise found.value
    raise _lost(found, failed, logs)


def _lost(found: Outcome | None, failed: ChildFailedError | None, logs: Path | None) -> WorkerLost:
    codes = {failure.local_rank: failure.exitcode for failure in failed.failures.values()} if failed else {}
    rank = found.rank if found is not None else next(iter(codes), 0)
    code = found.value if found is not None and found.value is not None else codes.get(rank)
    how = "ended without a word" if code is None else _manner(code)
    last = _last_line(logs / f"rank-{rank}.log") if logs else ""
    hint = _OUT_OF_MEMORY if how.endswith("SIGKILL") else ""
    return WorkerLost(f"rank {rank} {how}{f'; its last line was: {last}' if last else ''}", hint=hint)


def _manner(code: int) -> str:
    try:
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    except ValueError:
        return f"was killed by signal {-code}"


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


@contextmanager
def _no_main_script() -> Iterator[None]:
    """Keep spawned ranks from running the main script again: nothing of it is needed, and it may have no guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _quiet_elastic() -> Iterator[None]:
    """Keep elastic's own account of a failure, tracebacks included, off the screen: one sentence gives the reason."""
    import torch.distributed.launcher.api
    import torch.multiprocessing.spawn  # noqa: F401 - both imported so that their loggers exist

    talkers = ("torch.distributed.elastic", "torch.multiprocessing")
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith(talkers)]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
