"""One writer per run folder, and JSON files that are whole or absent."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arrowtune.errors import ConfigError, RunLocked
from arrowtune.runfolder import RunFolder, read_json, write_json

HOLD = """
import sys, time
from pathlib import Path
from arrowtune.runfolder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_told_who_holds_the_folder_and_gets_it_when_the_first_is_killed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder.path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunLocked, match=f"{folder.path} is in use by process {holder.pid} on ") as caught, folder.lock():
            pass
        assert caught.value.exit_code == 2
        assert "another name or output_dir" in caught.value.hint
        holder.kill()
    with folder.lock():
        pass


def test_the_lock_is_let_go_and_can_be_taken_again_after_an_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(KeyError), folder.lock():
        raise KeyError
    with folder.lock():
        pass


def test_a_child_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.lock():
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with folder.lock():
            pass
    finally:
        child.kill()
        child.wait()


def test_a_folder_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"), RunFolder(tmp_path / "file" / "run").lock():
        pass


def test_json_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "resolved.json"
    write_json(path, {"a": 1, "ü": [None, 1.5]})
    assert read_json(path) == {"a": 1, "ü": [None, 1.5]}
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1, "ü": [None, 1.5]}
    assert [entry.name for entry in path.parent.iterdir()] == ["resolved.json"]


def test_B47_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "resolved.json"
    write_json(path, {"a": 1})
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            write_json(path, {"a": "x" * 10_000})
        except OSError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["resolved.json"]
