"""Sessions with Ray's legacy debugger, in a process of its own and without a cluster."""

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from child_processes import ended
from debug.debugged import Debugged, Typist, interrupt_soon, interruptible

from cloudrl.debug.console import Console
from cloudrl.debug.pdb_session import PdbSession
from cloudrl.debug.session import End
from cloudrl.protocol.stops import PDB, Stop

pytestmark = pytest.mark.ray

PROGRAM = """
    import bdb, sys
    from ray.util.rpdb import _RemotePdb

    def stop():
        # ray/util/rpdb.py, _connect_ray_pdb, without the entry in Ray's store
        debugger = _RemotePdb("1", "127.0.0.1", 0, "localhost", quiet=True)
        debugger._listen_socket.listen(1)
        print(debugger._listen_socket.getsockname()[1], flush=True)
        debugger.listen()
        debugger.set_trace(frame=sys._getframe().f_back)

    def train(name):
        total = 1
        stop()
        total += 1
        answer = input() if name == "asks" else ""
        return total

    print("result", train("\\x1b[31mred"), flush=True)
"""


@pytest.fixture
def paused(tmp_path: Path) -> Iterator[Debugged]:
    (tmp_path / "main.py").write_text(textwrap.dedent(PROGRAM).lstrip())
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    with subprocess.Popen(
        [sys.executable, "main.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process, ended(process):  # fmt: skip
        yield Debugged(tmp_path, process, "breakpoint")


def typed(process: Debugged, *lines: str, confirm: bool = True) -> tuple[PdbSession, End, Typist]:
    typist = Typist(lines)
    console = Console(
        typist.read, typist.shown.append, lambda text: typist.shown.append(f"[{text}]"), lambda _question: confirm
    )
    stop = Stop("1", 0, process.process.pid, process.port, PDB)
    session = PdbSession(process.dial(), stop, console)
    return session, session.run(), typist


def test_it_is_pdb_until_it_continues(paused: Debugged) -> None:
    _, end, seen = typed(paused, "p total", "name", "n", "total = 9", "c")
    assert end is End.LEFT
    assert seen.prompts == ["(Pdb) "] * 5
    assert seen.shown[0].endswith("main.py(15)train()")
    assert "1\n'\\x1b[31mred'\n" in seen.text
    assert seen.shown[-1] == "[the task goes on without a debugger, to its next breakpoint()]"
    assert paused.rest() == ["result 9"]


def test_a_line_may_have_its_end(paused: Debugged) -> None:
    """pdb would take another one for an empty line, and do the same again."""
    _, _, seen = typed(paused, "p total + 40\n", "q")
    assert seen.shown[2:] == ["41", "[the task goes on without a debugger]"]


@pytest.mark.parametrize(("line", "end"), [("q", End.LEFT), ("np", End.NEXT), ("exit", End.LEFT)])
def test_leaving_lets_the_task_go_on(paused: Debugged, line: str, end: End) -> None:
    """pdb's own `q` would end it with BdbQuit."""
    _, ended_as, _ = typed(paused, line)
    assert ended_as is end
    assert paused.rest() == ["result 2"]


def test_no_is_an_answer_and_the_end_of_the_input_leaves(paused: Debugged) -> None:
    _, end, seen = typed(paused, "q", "p total + 40", confirm=False)
    assert seen.shown[-2:] == ["41", "[the task goes on without a debugger]"]
    assert (seen.prompts, end) == (["(Pdb) "] * 3, End.LEFT)


def test_leaving_the_lines_of_commands(paused: Debugged) -> None:
    """Ray's own pdb takes the end of the connection for `quit`, and would add `q` to the commands."""
    _, end, seen = typed(paused, "b main.py:14", "commands", "p 40 + 1", "q")
    assert seen.prompts == ["(Pdb) "] * 2 + ["(com) "] * 2
    assert (end, seen.shown[-1]) == (End.LEFT, "[the task goes on without a debugger]")
    assert paused.rest() == ["result 2"]


def test_leaving_while_pdb_works(paused: Debugged) -> None:
    def sleep() -> str:
        interrupt_soon()
        return "__import__('time').sleep(3)"

    typist = Typist([sleep, "never typed"])
    session = PdbSession(paused.dial(), Stop("1", 0, paused.process.pid, paused.port, PDB), typist.console())
    with interruptible():
        assert session.run() is End.LEFT
    assert "waiting until pdb is done with the last line; Ctrl-C leaves at once" in typist.shown
    assert paused.rest() == ["result 2"]


def test_ctrl_c_at_the_question_stays(paused: Debugged) -> None:
    typist = Typist(["q", "p total + 40"])

    def interrupt(_question: str) -> bool:
        raise KeyboardInterrupt

    stop = Stop("1", 0, paused.process.pid, paused.port, PDB)
    session = PdbSession(paused.dial(), stop, typist.console(interrupt))
    assert session.run() is End.LEFT
    assert typist.prompts == ["(Pdb) "] * 3
    assert typist.shown[-2:] == ["41", "the task goes on without a debugger"]
    assert paused.rest() == ["result 2"]


def test_a_process_that_is_gone_is_said(paused: Debugged) -> None:
    typist = Typist(["p 1"])

    def kill(prompt: str) -> str:
        paused.process.kill()
        paused.process.wait()
        return typist.read(prompt)

    stop = Stop("1", 0, paused.process.pid, paused.port, PDB)
    console = Console(kill, typist.shown.append, typist.shown.append, lambda _question: True)
    session = PdbSession(paused.dial(), stop, console)
    with contextlib.suppress(EOFError):
        assert session.run() is End.LOST
    assert session.lost.startswith("the connection to the debugger")
