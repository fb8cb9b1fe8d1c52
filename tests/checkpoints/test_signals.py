"""A merge that SIGTERM or SIGHUP ends leaves nothing, as one that Ctrl-C ends."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import SLOWER

pytestmark = pytest.mark.io
MERGE = """
import sys, threading, time
from pathlib import Path
from cloudrl.checkpoints.staging import staged
from cloudrl.shards.cancellation import check, workers
from cloudrl.shards.signals import undone_by_signals, undone_once

def write(folder):
    number = 0
    while True:
        check()
        number += 1
        (folder / "deep").mkdir(exist_ok=True)
        (folder / "deep" / f"{number % 50}.part").write_bytes(bytes(1000))

try:
    with undone_by_signals(), undone_once(), staged(Path(sys.argv[1]), 1) as folder:
        with workers(2, "write") as pool:
            pool.submit(write, folder)
            (folder / "weights").write_bytes(bytes(100_000))
            print("begun", flush=True)
            while True:  # a signal just before one long sleep would not end it
                time.sleep(0.05)
except KeyboardInterrupt:
    sys.exit(130)
"""
CLI = """
import sys
import time
import types
from pathlib import Path

from cloudrl.checkpoints.staging import staged
from cloudrl.cli import _commands, main

def stand_in(to: Path) -> None:
    with staged(to, 1):
        print("begun", flush=True)
        while True:
            time.sleep(0.05)

sys.modules["cloudrl.cli.stand_in"] = types.SimpleNamespace(stand_in=stand_in)
_commands.COMMANDS["stand-in"] = _commands.Entry("stand_in:stand_in", "")
main.main()
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def run(program: str, *args: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([*before, sys.executable, "-c", program, *args], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
@pytest.mark.parametrize("again", [None, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_merge_leaves_nothing(
    tmp_path: Path, start: Start, number: signal.Signals, code: int, again: signal.Signals | None
) -> None:
    process = start(MERGE, str(tmp_path / "model"))
    assert [each.name for each in tmp_path.iterdir()] == [".model.merging"]
    process.send_signal(number)
    if again is not None:
        process.send_signal(again)
    # of two that come at once Python takes the lower number first
    assert process.wait(20 * SLOWER) in {code, code if again is None else 128 + again}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_the_command_line_leaves_nothing(tmp_path: Path, start: Start, number: signal.Signals, code: int) -> None:
    process = start(CLI, "stand-in", str(tmp_path / "model"))
    process.send_signal(number)
    assert process.wait(20 * SLOWER) == code
    assert list(tmp_path.iterdir()) == []


def test_what_nohup_has_started_goes_on(tmp_path: Path, start: Start) -> None:
    process = start(MERGE, str(tmp_path / "model"), before=("nohup",))
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20 * SLOWER) == 143
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_before_typer_looks_is_no_traceback(start: Start, tmp_path: Path) -> None:
    """Typer handles the one that comes while a command runs, but not a second one, or one before."""
    program = """
import sys, time
from cloudrl.cli import main

def app():
    print("begun", flush=True)
    time.sleep(60)

main.app = app
sys.stderr = open(sys.argv[1], "w")
main.main()
"""
    process = start(program, str(tmp_path / "said"))
    process.send_signal(signal.SIGINT)
    assert (process.wait(20 * SLOWER), (tmp_path / "said").read_text()) == (130, "")


AT_THE_END = """
import sys, threading, time
from cloudrl.cli import main

def app():
    threading.Thread(target=lambda: (time.sleep(0.3), print("ends", flush=True), time.sleep(60))).start()
    print("begun", flush=True)
    time.sleep(60)

main.app = app
sys.stderr = open(sys.argv[1], "w")
main.main()
"""


def test_ctrl_c_again_while_python_waits_for_threads_is_no_traceback(start: Start, tmp_path: Path) -> None:
    process = start(AT_THE_END, str(tmp_path / "said"))
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ends\n"
    process.send_signal(signal.SIGINT)
    assert (process.wait(20 * SLOWER), (tmp_path / "said").read_text()) == (-signal.SIGINT, "")
