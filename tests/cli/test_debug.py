"""`cloudrl debug`: the list, a session in a terminal, and ports for VS Code."""

import fcntl
import http.client
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from child_processes import ended, until
from debug.debugged import FAILING, Debugged, debugged, typed
from fake_local import FakeLocal
from patience import SLOWER
from terminal_page import in_terminal
from typed_command import Run

from cloudrl.cli._terminal import Terminal
from cloudrl.cli.debug import _console
from cloudrl.jobs import Line
from cloudrl.protocol.stops import Stop

pytestmark = pytest.mark.io

COMMAND = [sys.executable, "-W", "error", "-c", "from cloudrl.cli.main import main; main()"]
STOP = Stop(
    "1", 0, 7, 5678, job="a", actor="WorkerDict", rank=1, method="update_actor", file="/v/verl/workers/dp_actor.py",
    line=412, cwd="/job", reason="breakpoint",
)  # fmt: skip


def test_nothing_is_paused(lab: FakeLocal, run: Run) -> None:
    done = run("debug").ended(0, "Nothing is paused on lab. Put breakpoint() into the code", "submit grpo-tiny")
    assert done.out == ""
    assert json.loads(run("debug", "--json").out) == []
    run("debug", "1").ended(2, "no paused task 1: nothing is paused", "cloudrl debug -c local/lab")


def test_the_list_as_text_and_as_json(lab: FakeLocal, run: Run) -> None:
    reason = "ValueError: no \x1b]0;title\x07"
    other = replace(STOP, id="2", rank=None, node=1, actor="evil\x1b[2J\nname", reason=reason, attached=True)
    lab.cluster.stops = [replace(each, since=time.time() - 125) for each in (STOP, other)]
    done = run("debug").ended(0, "Debug one: cloudrl debug 2 -c local/lab")
    assert [line.split() for line in done.out.splitlines()] == [
        ["#", "node", "rank", "actor", "function", "file:line", "since", "why"],
        ["1", "1", r"evil\x1b[2J\nname", "update_actor", "dp_actor.py:412", "2", "min", "ValueError,", "attached"],
        ["2", "0", "1", "WorkerDict", "update_actor", "dp_actor.py:412", "2", "min", "breakpoint"],
    ]
    assert "\x1b" not in done.out
    fields = json.loads(run("debug", "--json").ended(0).out)
    assert [(each["id"], each["reason"]) for each in fields] == [("2", reason), ("1", "breakpoint")]
    lab.cluster.stops.append(replace(STOP, id="3", job="b"))
    assert run("debug").out.splitlines()[0].split()[:2] == ["job", "#"]


def test_the_list_fits_a_terminal(lab: FakeLocal, tmp_path: Path) -> None:
    """Of 80 columns, with the names of verl and of Ray; nothing is folded in the middle of a word."""
    worker = replace(STOP, since=time.time() - 125, job="grpo-tiny-20261123-1850-7f3a")
    loop = replace(
        worker, id="2", rank=None, job="grpo-tiny-20261123-1850-b21c", actor="AgentLoopWorker", pid=8,
        method="_run_agent_loop", file="/v/single_turn_agent_loop.py", reason="verl.errors.RolloutError: no answer",
    )  # fmt: skip
    lab.cluster.stops = [worker, loop]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    command = [*COMMAND, "debug", "--list"]
    subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, timeout=60, check=True, env=environment)
    os.close(theirs)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", os.read(ours, 65536).decode()).split("\r\n")
    os.close(ours)
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines if line] == [
        ["job", "#", "node", "rank", "actor", "function", "file:line", "since", "why"],
        ["7f3a", "1", "0", "1", "WorkerDict", "update_ac..", "..tor.py:412", "2", "min", "breakpoint"],
        ["b21c", "2", "0", "AgentLoop..", "_run_agen..", "..oop.py:412", "2", "min", "RolloutError"],
    ]


def test_words_that_exclude_each_other(lab: FakeLocal, run: Run) -> None:
    run("debug", "1", "--json").ended(2, "exclude each other")
    run("debug", "--list", "--vscode").ended(2, "exclude each other")


def test_status_warns_of_a_task_that_waits(lab: FakeLocal, run: Run) -> None:
    lab.cluster.stops = [replace(STOP, since=time.time() - 400)]
    run("status", "lab").ended(0, "warning: a task has waited for a debugger for 6 min", "cloudrl debug -c local/lab")


@pytest.fixture
def paused(lab: FakeLocal, tmp_path: Path) -> Iterator[Debugged]:
    """A real one."""
    with debugged(tmp_path / "job") as process:
        lab.cluster.stops = [process.stop]
        yield process


def test_a_session_in_a_terminal(paused: Debugged) -> None:
    """With one task, its number can be left out; hostile names and sources are shown, and steer nothing."""
    with in_terminal([*COMMAND, "debug"], 80, 24) as seen:
        seen.read("h for help")
        os.write(seen._terminal, b"s\nl\nu\nname\nq\ny\n")
        assert seen.end() == 0
        assert seen.process.stdout is not None
        out = seen.process.stdout.read().decode()
    assert r"    '''Adds \x1b]0;title\x07.'''" in out
    assert r"'a\x1b[31mred\nline'" in out
    assert "\x1b" not in out
    assert "[the task goes on without a debugger]" in "\n".join(seen.page.lines)
    assert paused.rest() == ["result ['a\\x1b[31mred\\nline', 103]"]


def test_a_session_of_a_program(paused: Debugged) -> None:
    """Lines from a pipe, as a script or an agent writes them; the list alone without a number."""
    listed = subprocess.run([*COMMAND, "debug"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (listed.returncode, listed.stdout.split()[:2]) == (0, ["#", "node"])
    done = subprocess.run(
        [*COMMAND, "debug", "1"], input="p total + 38\nc\n", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "41"
    assert "running" in done.stderr
    assert paused.rest() == ["result ['a\\x1b[31mred\\nline', 103]"]


def test_what_the_output_cannot_encode_ends_no_session(paused: Debugged) -> None:
    done = subprocess.run(
        [*COMMAND, "debug", "1"], input=b"p chr(26085)\np '\xff'\nc\n", capture_output=True, timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert rb"'\u65e5'" in done.stdout
    paused.rest()


def test_a_person_whose_output_goes_to_a_file_is_asked(paused: Debugged, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shell = ["sh", "-c", 'out=$1; shift; exec "$@" > "$out"', "sh", str(out)]
    with in_terminal([*shell, *COMMAND, "debug", "1"], 80, 24) as seen:
        seen.read("(rank 1) ")
        os.write(seen._terminal, b"p total + 38\n")
        until(lambda: "41" in out.read_text(), "the value is in the file")
        os.write(seen._terminal, b"c\n")
        assert seen.end() == 0
    paused.rest()


def test_lines_of_a_program_have_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A debugger that gets text would take it for an empty line, which repeats the last command."""
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n\n"))
    console = _console()
    assert [console.read(""), console.read("")] == ["n", ""]
    with pytest.raises(EOFError):
        console.read("")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_vs_code_attaches_through_a_port_and_ray_s_extension_through_the_front(
    lab: FakeLocal, paused: Debugged, tmp_path: Path, number: signal.Signals
) -> None:
    lab.cluster.workers = [{"ip": "10.0.0.1", "pid": paused.process.pid, "debugger_port": paused.port}]
    folder = tmp_path / "mine"
    (folder / ".vscode").mkdir(parents=True)
    mine = '{\n    // mine\n    "configurations": [\n        {"name": "x"}\n    ]\n}\n'
    launch = folder / ".vscode" / "launch.json"
    launch.write_text(mine)
    with subprocess.Popen(
        [*COMMAND, "debug", "--vscode"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process, ended(process):  # fmt: skip
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        until(lambda: "cloudrl: local/lab, WorkerDict rank 1" in launch.read_text(), "there is an entry")
        assert "// mine" in launch.read_text()
        front = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        front.request("GET", "/api/v0/workers?detail=1&limit=10000")
        [row] = json.loads(front.getresponse().read())["data"]["result"]["result"]
        front.close()
        assert row["ip"] == "127.0.0.1"
        assert f'"port": {row["debugger_port"]}' in launch.read_text()
        end, seen = typed(replace_port(paused, row["debugger_port"]), "p total + 38", "c")
        assert "41" in seen.shown
        lab.cluster.stops = []
        until(lambda: launch.read_text() == mine, "the entry is gone with the stop")
        lab.cluster.stops = [paused.stop]
        until(lambda: launch.read_text() != mine, "there is an entry again")
        process.send_signal(number)
        _, said = process.communicate(timeout=30 * SLOWER)
    assert process.returncode == (0 if number == signal.SIGINT else 128 + number), said
    assert "127.0.0.1:" in said
    assert "the ports are closed" in said
    assert launch.read_text() == mine
    assert end.value == "over"
    paused.process.wait(30 * SLOWER)


def replace_port(process: Debugged, port: int) -> Debugged:
    process.port = port
    return process


def test_a_launch_file_that_cannot_be_read_is_left_alone(lab: FakeLocal, paused: Debugged, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / ".vscode").mkdir(parents=True)
    launch = folder / ".vscode" / "launch.json"
    launch.write_text("{ half")
    with subprocess.Popen(
        [*COMMAND, "debug", "--vscode"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process, ended(process):  # fmt: skip
        assert process.stderr is not None
        said = ""
        while '"justMyCode": false' not in said:
            said += process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30 * SLOWER)
    assert "is left as it is" in said
    assert launch.read_text() == "{ half"
    assert [each.name for each in launch.parent.iterdir()] == ["launch.json"]


def test_np_goes_to_the_next_one(lab: FakeLocal, paused: Debugged, tmp_path: Path) -> None:
    error = "ValueError: invalid literal for int() with base 10: 'forty'"
    with debugged(tmp_path / "other", FAILING, reason=error) as second:
        lab.cluster.stops = [replace(paused.stop, rank=0), replace(second.stop, id="2", node=1)]
        done = subprocess.run(
            [*COMMAND, "debug", "1"], input="np\np answer\nq\n", capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "'forty'"
        assert error in done.stdout
        assert second.rest() == ["done"]
    paused.rest()


def test_who_follows_a_job_is_told_of_a_stop(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\x1b[36m(WorkerDict pid=7)\x1b[0m cloudrl: breakpoint at a.py:3 waits for a debugger: cloudrl debug\n"
    with Terminal() as terminal:
        terminal(Line("loading\n"))
        terminal(Line(text))
    assert capsys.readouterr().err == (
        "(WorkerDict pid=7) cloudrl: breakpoint at a.py:3 waits for a debugger: cloudrl debug\n"
    )
