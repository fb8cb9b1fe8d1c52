"""Processes of a job that is debugged: where they listen, what they note, and that they go on."""

import contextlib
import itertools
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dap_client import DapClient
from patience import SLOWER
from pdb_client import until_prompt

from cloudrl.node.stop_hook.stop_notes import place_of
from cloudrl.node.stops import Stops
from cloudrl.protocol.stops import Stop

pytestmark = pytest.mark.io

WORK = """
import threading

def work(a):
    b = a + 1
    breakpoint()
    return b * 2

"""
FAILS = """
import cloudrl_stop_hook.stop_dap as dap, cloudrl_stop_hook.stop_pdb as pdb, os

def score(truth):
    half = truth / 2
    raise ValueError("no reward for %s" % truth)

try:
    score(3)
except ValueError:
    (pdb if os.environ["CLOUDRL_DEBUGGER"] == "pdb" else dap).post_mortem()
    print("went on")
"""


class Lab:
    """Starts processes as Ray's are started, and knows their stops."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stops = folder, Stops(folder, 0)
        self.variables = self.stops.prepare({})
        self.started: list[subprocess.Popen[str]] = []

    def start(self, code: str, debugger: str = "debugpy", **env: str) -> "subprocess.Popen[str]":
        (self.folder / "job.py").write_text(code)
        path = self.variables["CLOUDRL_DEBUGGER_PYTHONPATH"]
        own = {"PYTHONPATH": path, "CLOUDRL_DEBUGGER": debugger, "CLOUDRL_DEBUGGER_JOB": "job-1", "RAY_DEBUG": "0"}
        own["PYTHONBREAKPOINT"] = "0"  # as the nodes have it
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(self.folder / "job.py")],
            env={**os.environ, **self.variables, **own, "PYDEVD_DISABLE_FILE_VALIDATION": "1", **env},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
        )  # fmt: skip
        self.started.append(process)
        return process

    def wait(self, is_there: Callable[[Stop], bool] = lambda stop: not stop.attached) -> Stop:
        deadline = time.monotonic() + 60 * SLOWER
        while True:
            for stop in self.stops.listing():
                if is_there(stop):
                    return stop
            assert time.monotonic() < deadline
            assert self.started[-1].poll() is None, self.started[-1].communicate()
            time.sleep(0.05)

    def dap(self, stop: Stop) -> DapClient:
        return DapClient(self.stops.connect(stop.port))

    def said(self) -> tuple[str, str]:
        out, err = self.started[-1].communicate(timeout=60)
        assert self.started[-1].returncode == 0, err
        assert self.stops.listing() == ()
        assert not list((self.folder / "stops-0").iterdir())
        return out, err


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    (tmp_path / "ray" / "job").mkdir(parents=True)  # as Ray names its folder for temporary files
    found = Lab(tmp_path / "ray" / "job")
    yield found
    for process in found.started:
        process.kill()
        process.communicate()


def test_a_breakpoint_and_the_next_one_with_the_same_client(lab: Lab):
    lab.start(WORK + "print(work(20), work(1))", RANK="1")
    stop = lab.wait()
    assert (stop.method, stop.line, stop.rank, stop.job) == ("work", 6, 1, "job-1")
    assert (stop.file, stop.cwd, stop.reason) == (str(lab.folder / "job.py"), str(lab.folder), "breakpoint")
    client = lab.dap(stop)
    client.attach()
    thread, stack = client.stopped()
    assert [(frame["name"], frame["line"]) for frame in stack] == [("work", 7), ("<module>", 9)]
    assert client.locals(stack[0]) == {"a": "20", "b": "21"}
    standing = lab.wait(lambda stop: stop.attached)
    assert (standing.id, standing.line) == (stop.id, 7)
    client.go_on(thread)
    thread, stack = client.stopped()
    again = lab.wait(lambda stop: stop.attached)
    assert again.id != stop.id
    assert client.evaluate("a", stack[0]) == "1"
    client.close()  # the connection is lost, and the process goes on
    out, err = lab.said()
    assert out == "42 4\n"
    assert err.count("waits for a debugger: cloudrl debug") == 1


def test_it_listens_on_loopback_alone(lab: Lab):
    lab.start(WORK + "work(1)")
    stop = lab.wait()
    found = []
    for name in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
        found += [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{stop.port:04X}")]
    assert found == [f"0100007F:{stop.port:04X}"]


def test_a_breakpoint_of_a_client(lab: Lab):
    lab.start(WORK + "work(1)\nfor number in range(3):\n    total = number\nprint('end')")
    stop = lab.wait()
    client = lab.dap(stop)
    client.attach({stop.file: [11]})
    thread, _ = client.stopped()
    client.go_on(thread)
    _, stack = client.stopped()
    assert (stack[0]["name"], stack[0]["line"]) == ("<module>", 11)
    assert lab.wait(lambda stop: stop.attached).line == 11
    client.close()
    assert lab.said()[0] == "end\n"


def test_two_threads_wait_at_once(lab: Lab):
    lab.start(WORK + "threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]\n"
              "[t.start() for t in threads]; [t.join() for t in threads]")  # fmt: skip
    lab.wait()
    lab.wait(lambda _: len(lab.stops.listing()) == 2)
    assert len({stop.id for stop in lab.stops.listing()}) == 2


def test_a_forked_child_runs_past_its_breakpoints(lab: Lab):
    fork = "import os, sys\nif os.fork() == 0:\n    print(work(2), flush=True)\n    os._exit(0)\nos.wait()"
    lab.start(WORK + "work(1)\n" + fork)
    client = lab.dap(lab.wait())
    client.attach()
    client.go_on(client.stopped()[0])
    assert lab.started[-1].wait(30 * SLOWER) == 0
    client.close()
    out, err = lab.said()
    assert out == "6\n"
    assert "a forked process has no debugger of its own" in err


def test_a_post_mortem(lab: Lab):
    lab.start(FAILS)
    stop = lab.wait()
    assert (stop.method, stop.line, stop.reason) == ("score", 6, "ValueError: no reward for 3")
    client = lab.dap(stop)
    client.attach()
    thread, stack = client.stopped()
    assert (stack[0]["name"], stack[0]["line"]) == ("score", 6)
    assert client.locals(stack[0])["half"] == "1.5"
    standing = lab.wait(lambda stop: stop.attached)
    assert (standing.id, standing.line, standing.reason) == (stop.id, stop.line, stop.reason)
    client.go_on(thread)
    assert lab.started[-1].wait(30 * SLOWER) == 0
    client.close()
    assert lab.said()[0] == "went on\n"


def test_without_debugpy_it_goes_on_and_says_so(lab: Lab):
    lab.start("import sys; sys.modules['debugpy'] = None\n" + WORK + "print(work(1))")
    out, err = lab.said()
    assert out == "4\n"
    assert re.search(r"job.py:7 is passed over: this node's Python has no debugpy", err)


def test_a_job_that_is_not_debugged_is_left_alone(lab: Lab):
    lab.start("import sys, builtins\nprint(breakpoint, [each for each in sys.meta_path if 'stop' in repr(each)])", "")
    assert lab.said()[0] == "<built-in function breakpoint> []\n"


@pytest.fixture
def text(lab: Lab) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        connection = lab.stops.connect(lab.wait().port)
        connection.settimeout(60)
        return connection

    return connect


@pytest.mark.parametrize("end", ["continue", "close"])
def test_pdb(lab: Lab, text: Callable[[], socket.socket], end: str):
    lab.start(WORK + "print(work(20))", "pdb")
    stop = lab.wait()
    assert (stop.debugger, stop.method, stop.line, stop.reason) == ("pdb", "work", 6, "breakpoint")
    with text() as connection:
        until_prompt(connection)
        standing = lab.wait(lambda stop: stop.attached)
        assert (standing.id, standing.line) == (stop.id, 7)
        connection.sendall(b"p b\n")
        assert "21" in until_prompt(connection)
        connection.sendall(b"n\n")
        until_prompt(connection)
        assert lab.wait(lambda stop: stop.attached).id != stop.id
        if end == "continue":
            connection.sendall(b"c\n")
            assert connection.recv(4096) in (b"", b"\r\n")
    assert lab.said()[0] == "42\n"


@pytest.mark.parametrize(
    "lines", [(b"b 7",), (b"b 7", b"commands", b"p b"), (b"b 6, True", b"commands")], ids=["break", "commands", "open"]
)
def test_the_end_of_a_connection_with_breakpoints_of_pdb(
    lab: Lab, text: Callable[[], socket.socket], lines: list[bytes]
):
    """Neither a later stop nor the lines of `commands` end the task."""
    lab.start(WORK + "print(work(20), work(20))", "pdb")
    lab.wait()
    with text() as connection:
        until_prompt(connection)
        for line in lines:
            connection.sendall(line + b"\n")
            time.sleep(0.2)
    stop = lab.wait(lambda stop: not stop.attached and stop.line == 6)
    assert stop.method == "work"
    with text() as connection:
        until_prompt(connection)
        connection.sendall(b"c\n")
    assert lab.said()[0] == "42 42\n"


def test_a_post_mortem_with_pdb(lab: Lab, text: Callable[[], socket.socket]):
    lab.start(FAILS, "pdb")
    stop = lab.wait()
    assert (stop.method, stop.line, stop.reason) == ("score", 6, "ValueError: no reward for 3")
    with text() as connection:
        until_prompt(connection)
        connection.sendall(b"p half\n")
        assert "1.5" in until_prompt(connection)
        connection.sendall(b"c\n")
        while connection.recv(4096):
            pass
    assert lab.said()[0] == "went on\n"


@pytest.mark.parametrize("debugger", ["debugpy", "pdb"])
def test_a_stop_without_a_note_is_passed_over(lab: Lab, debugger: str):
    """Nobody could let it go on."""
    lab.start(WORK + "print(work(20))", debugger, CLOUDRL_STOPS_DIR=str(lab.folder / "missing"))
    out, err = lab.said()
    assert out == "42\n"
    assert re.search(r"no note of the stop at .*job.py:6 can be written: .*missing.*; it is passed over", err)


def test_what_was_written_of_a_note_goes_when_the_disk_is_full(lab: Lab):
    full = "import json\n\ndef dump(*_):\n    raise OSError(28, 'No space left on device')\n\njson.dump = dump\n"
    lab.start(full + WORK + "print(work(20))")
    out, err = lab.said()  # which looks into the folder of notes, too
    assert out == "42\n"
    assert "No space left on device; it is passed over" in err


def test_a_note_that_fails_leaves_a_connected_client_its_stop(lab: Lab):
    lab.start(WORK + "import json\nwork(1)\njson.dump = None\ntotal = 20\nprint(total + 22)")
    stop = lab.wait()
    with contextlib.closing(lab.dap(stop)) as client:
        client.attach({stop.file: [13]})
        client.go_on(client.stopped()[0])
        thread, stack = client.stopped()
        assert client.evaluate("total", stack[0]) == "20"
        assert lab.stops.listing() == ()
        client.go_on(thread)
        assert lab.started[-1].wait(30 * SLOWER) == 0
    out, err = lab.said()
    assert out == "42\n"
    assert "`cloudrl debug` does not list this stop: Unnoted(" in err


@pytest.mark.parametrize("way", ["closed", "broken", "none"])
def test_a_stderr_that_takes_nothing_ends_no_job(lab: Lab, way: str):
    ways = {
        "closed": "sys.stderr.close()",
        "broken": "r, w = os.pipe(); os.close(r); os.dup2(w, 2)",
        "none": "sys.stderr = None",
    }
    lab.start(f"import os, sys\n{ways[way]}\n{WORK}print(work(20))", CLOUDRL_STOPS_DIR=str(lab.folder / "missing"))
    assert lab.said()[0] == "42\n"


def test_a_hook_that_fails_where_stderr_is_broken(lab: Lab):
    (lab.folder / "debug-0" / "cloudrl_stop_hook" / "__init__.py").write_text("1 / 0")
    (lab.folder / "site").mkdir()
    (lab.folder / "site" / "sitecustomize.py").write_text("print('the next one')")
    path = f"{lab.folder}/debug-0:{lab.folder}/site"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        said = subprocess.run(
            [sys.executable, "-c", "print('job')"], env={"PYTHONPATH": path},
            stdout=subprocess.PIPE, stderr=writer, check=True, text=True, timeout=60,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert said.stdout == "the next one\njob\n"


def test_a_relative_name_in_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    names: dict[str, Any] = {"sys": sys}
    exec(compile("frame = sys._getframe()", "given.py", "exec"), names)
    assert place_of(names["frame"], 1)["file"] == "given.py"


def as_another_user(work: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65_534)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.root
@pytest.mark.parametrize("debugger", ["debugpy", "pdb"])
def test_another_user_of_the_node_gets_nothing(lab: Lab, debugger: str):
    """By IPv4 and IPv6, whether the user waits for an answer, ends what they send, or closes the connection."""
    lab.start(WORK + "print(work(20))", debugger)
    stop = lab.wait()
    head = b'Content-Length: 54\r\n\r\n{"seq": 1, "type": "request", "command": "initialize"}' * (debugger == "debugpy")

    def intrude(family: int, way: str) -> None:
        with socket.socket(family) as connection:
            connection.settimeout(30 * SLOWER)
            connection.connect(("127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1", stop.port))
            heard = b""
            with contextlib.suppress(OSError):
                if way != "waits":
                    connection.sendall(head or b"c\n")
                if way == "ends":
                    connection.shutdown(socket.SHUT_WR)
                if way != "closes":
                    heard = connection.recv(100)
            assert heard == b""

    for family, way in itertools.product((socket.AF_INET, socket.AF_INET6), ("waits", "ends", "closes")):
        as_another_user(partial(intrude, family, way))
        assert lab.wait().id == stop.id
    with lab.stops.connect(stop.port) as connection:  # our own user's is taken
        connection.settimeout(60)
        assert connection.recv(1)
