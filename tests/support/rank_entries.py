"""What the ranks of launch tests run: plain functions, importable in a fresh process."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from arrowtune.errors import Interrupted, NonFiniteLoss


def echo(payload: dict[str, Any]) -> dict[str, Any]:
    """The payload with what the rank knows of itself."""
    import torch

    print(f"rank {os.environ.get('RANK')} was here")
    return {**payload, "rank": os.environ.get("RANK"), "world": os.environ.get("WORLD_SIZE"), "threads": torch.get_num_threads()}


def all_reduce(payload: dict[str, Any]) -> float:
    """The sum of all ranks' numbers through a process group made from the environment."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.tensor([float(os.environ["RANK"]) + payload["plus"]])
    dist.all_reduce(value)
    dist.destroy_process_group()
    return float(value)


def fail_on_purpose(payload: dict[str, Any]) -> None:
    """Rank 1 raises an ArrowtuneError while the others wait for ever."""
    if os.environ["RANK"] == "1":
        raise NonFiniteLoss("the loss of step 7 is NaN", hint="lower optimizer.lr")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # As a rank inside a hung collective: it hears nothing.
    time.sleep(600)


def crash(payload: dict[str, Any]) -> None:
    """Rank 1 raises what nobody foresaw."""
    if os.environ["RANK"] == "1":
        raise KeyError("lm_head")
    time.sleep(600)


def die(payload: dict[str, Any]) -> None:
    """Rank 1 is killed, as by the kernel when memory runs out; rank 0 then fails in its collective."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if os.environ["RANK"] == "1":
        print("allocating the optimizer state", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def wait_for_signal(payload: dict[str, Any]) -> None:
    """Write the pid into a folder, then wait; on a signal take a second to save, as training does."""
    folder, rank = Path(payload["folder"]), os.environ["RANK"]
    heard: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda got, _: heard.append(got))
    (folder / f"pid-{rank}.part").write_text(str(os.getpid()))
    (folder / f"pid-{rank}.part").rename(folder / f"pid-{rank}")
    while not heard:
        time.sleep(0.02)
    time.sleep(0.5)
    (folder / f"saved-{rank}").write_text(str(heard))
    raise Interrupted(heard[0], "stopped after step 3; the same command continues from it")


def main() -> None:
    """Launch one of the above from a process of its own: `python -m support.rank_entries ENTRY PAYLOAD DEVICES`."""
    from arrowtune.errors import ArrowtuneError
    from arrowtune.launch.local import launch

    name, payload, devices = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    try:
        print("result:", launch(f"support.rank_entries:{name}", payload, devices=devices))
    except ArrowtuneError as error:
        print(f"{type(error).__name__}:", error)
        sys.exit(error.exit_code)


def follow_then_reduce() -> None:
    """Under torchrun: rank 0 takes longer than the others' patience would be without heartbeats; then a collective works."""
    from arrowtune.launch.wait import lead_and_follow

    def work() -> dict[str, int]:
        time.sleep(1.5)
        return {"pid": os.getpid()}

    shared = lead_and_follow(work, beat_seconds=0.1, patience_seconds=1.0)
    line = f"shared: {os.environ['RANK']} {shared['pid']} {all_reduce({'plus': 0.5})}\n"
    os.write(1, line.encode())  # One write, so that two ranks on one pipe cannot mix their lines.


def follow_into_an_error() -> None:
    """Under torchrun: rank 0 fails, and every rank says why."""
    from arrowtune.errors import ArrowtuneError, SourceError
    from arrowtune.launch.wait import lead_and_follow

    def work() -> None:
        raise SourceError("there is no file data/chats.jsonl")

    try:
        lead_and_follow(work)
    except ArrowtuneError as error:
        print("failed:", os.environ["RANK"], type(error).__name__, error, flush=True)
        sys.exit(error.exit_code)


def follow_a_dead_leader() -> None:
    """Rank 0 stops answering."""
    from arrowtune.errors import WorkerLost
    from arrowtune.launch.wait import lead_and_follow

    try:
        lead_and_follow(lambda: os._exit(0), beat_seconds=0.1, patience_seconds=1.0)
    except WorkerLost as error:
        print("failed:", os.environ["RANK"], error, flush=True)


if __name__ == "__main__":
    if sys.argv[1].startswith("follow"):
        globals()[sys.argv[1]]()
    else:
        main()
