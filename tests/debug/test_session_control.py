"""Ctrl-C, breaks and ends in a session with a real debugpy, and what is typed while the task runs."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from child_processes import until
from debug.debugged import FAILING, Debugged, Typist, debugged, interrupt_soon, interruptible, opened, typed
from patience import SLOWER

from cloudrl.debug.dap import DapClient, NoAnswer
from cloudrl.debug.session import End, Session
from cloudrl.listening.joining import join

pytestmark = pytest.mark.io


LOOPING = """
    import os, time
    from hook import stop
    import lessons

    stop()
    while not os.path.exists("over"):
        time.sleep(0.01)
"""


def test_ctrl_c_stops_a_task_that_runs(tmp_path: Path) -> None:
    with debugged(tmp_path / "job", LOOPING) as process:

        def interrupt() -> str:
            interrupt_soon()
            return "c"

        with interruptible():
            end, seen = typed(process, interrupt, "1 + 1", "q")
        assert end is End.LEFT
        assert seen.prompts == ["(rank 1) "] * 3
        assert "\n2\n" in seen.text
        assert "> main.py(" in seen.between("running", "\n2\n")
        (process.folder / "over").touch()
        process.rest()


def test_a_connection_that_breaks_lets_the_task_go_on(paused: Debugged) -> None:
    """As a lost tunnel does."""
    ours, theirs = socket.socketpair()
    real = paused.dial()
    thread = threading.Thread(target=join, args=(theirs, real), daemon=True)
    thread.start()

    def cut() -> str:
        theirs.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):  # the thread may have done so already
            real.shutdown(socket.SHUT_RDWR)
        return "w"

    session = Session(DapClient(ours), paused.stop, Typist(["total", cut, "never typed"]).console())
    assert session.run() is End.LOST
    thread.join(10 * SLOWER)  # it still asks for both
    theirs.close()
    real.close()
    assert session.lost.startswith("the connection to the debugger")
    assert paused.rest() == ["result ['a\\x1b[31mred\\nline', 103]"]


def test_a_process_that_is_killed_is_lost_or_over(paused: Debugged) -> None:
    def kill() -> str:
        paused.process.kill()
        paused.process.wait()
        return "w"

    def where() -> str:
        time.sleep(0.1)  # the adapter, a process of its own, may live for a moment and refuse
        return "w"

    end, _ = typed(paused, kill, *[where] * 200)
    assert end in (End.LOST, End.OVER)


FORKING = """
    import subprocess, sys
    from hook import stop
    import lessons

    if len(sys.argv) > 1:
        print("child", flush=True)
        sys.exit()
    stop()
    subprocess.run([sys.executable, "main.py", "child"], check=True)
    print("parent", flush=True)
"""


def test_a_child_that_waits_for_a_client_of_its_own_gets_one(tmp_path: Path) -> None:
    """Where `subProcess=False` was not set, children would wait for ever (the event `debugpyAttach`)."""
    program = FORKING.replace("from hook import stop\n", "if len(sys.argv) == 1: from hook import stop\n")
    with debugged(tmp_path / "job", program, sub_process=True) as process:
        end, _ = typed(process, "c")
        assert end is End.OVER
        assert process.rest() == ["child", "parent"]


def await_stop(session: Session) -> None:
    """Until the debugger has said that the task stopped."""
    client = session._client
    until(lambda: client._events or select.select([client._socket], [], [], 0)[0], "it stops")


def interrupted_at_once(process: Debugged, *lines: str | Callable[[], str]) -> tuple[Session, Typist]:
    """Ctrl-C comes when the session waits and asks for other stops; the task does not stop, as code outside Python."""

    def interrupt() -> list[str]:
        raise KeyboardInterrupt

    session, typist = opened(process, *lines, others=interrupt)
    session._pause = lambda: None  # type: ignore[method-assign]
    return session, typist


def test_commands_that_need_a_stop_say_so_while_it_runs(tmp_path: Path) -> None:
    with debugged(tmp_path / "job", LOOPING) as process:

        def stops_meanwhile() -> str:
            session._process.resume("pause", session._current)
            await_stop(session)
            return "1 + 1"

        session, typist = interrupted_at_once(process, "c", "w", "h", stops_meanwhile, "q")
        assert session.run() is End.LEFT
        assert typist.prompts == ["(rank 1) ", *["(rank 1, running) "] * 3, "(rank 1) "]
        assert "> main.py(" in typist.text.partition("Ctrl-C     stop a task")[2].partition("\n2\n")[0]
        assert "*** the task is running" in typist.text
        (process.folder / "over").touch()
        process.rest()


def test_the_end_of_the_input_leaves(paused: Debugged) -> None:
    end, seen = typed(paused, "np")
    assert (end, seen.shown[-1]) == (End.NEXT, "[the task goes on without a debugger]")
    until(lambda: paused.process.poll() is not None, "the task has gone on")


def test_no_is_an_answer(paused: Debugged) -> None:
    end, seen = typed(paused, "q", "total", confirm=False)
    assert (end, seen.shown[-2:]) == (End.LEFT, ["3", "[the task goes on without a debugger]"])


TWICE = """
    import time
    from hook import stop
    import lessons

    stop()
    first = 1
    while not __import__("os").path.exists("on"):
        time.sleep(0.01)
    stop()
    second = 2
"""


@pytest.mark.parametrize("line", ["c", "np", *(pytest.param(line, marks=pytest.mark.slow) for line in ("", "n"))])
def test_a_stop_that_came_at_the_prompt_is_shown_before_anything_goes_on(tmp_path: Path, line: str) -> None:
    with debugged(tmp_path / "job", TWICE) as process:

        def stops_meanwhile() -> str:
            (process.folder / "on").touch()
            await_stop(session)
            return line

        session, typist = interrupted_at_once(process, "c", stops_meanwhile, "second = 5", "q")
        assert session.run() is End.LEFT
        shown = typist.text.partition("running")[2]
        assert "> main.py(10)<module>()\n-> second = 2\n*** it has stopped here meanwhile" in shown
        process.rest()


def test_a_step_that_was_answered_too_late_is_still_a_step(paused: Debugged) -> None:
    def slow() -> str:
        resume = session._process.resume

        def without_answer(command: str, thread: int) -> None:
            resume(command, thread)
            session._process.resume = resume  # type: ignore[method-assign]
            raise NoAnswer("the debugger has not answered within 15 s")

        session._process.resume = without_answer  # type: ignore[method-assign]
        return "n"

    def stopped() -> str:
        await_stop(session)
        return "total"

    session, typist = opened(paused, slow, stopped, "q")
    assert session.run() is End.LEFT
    assert typist.prompts[1] == "(rank 1, running) "
    assert typist.text.partition("15 s")[2].startswith("\n> main.py(10)train()\n-> rows = [name, total]\n103\n")
    paused.rest()


def test_what_was_interrupted_is_said_at_once(paused: Debugged) -> None:
    def sleep() -> str:
        interrupt_soon()
        return "__import__('time').sleep(4)"

    def later() -> str:
        until(lambda: not session._client.is_outstanding(session._process._outstanding[0]), "it is done")
        return "total"

    session, typist = opened(paused, sleep, "p total", "l", "n", "w", later, "l .", "q")
    with interruptible():
        assert session.run() is End.LEFT
    busy = "the task is still at work on __import__('time').sleep(4); q leaves it to that"
    said = typist.text.partition("interrupted; what was asked may still be at work there\n")[2]
    assert said.startswith(f"*** {busy}\n{busy}\n*** the source of")
    assert said.count(busy) == 3
    assert "\n3\n" in said
    assert "  8  \t    stop()" in said
    paused.rest()


def test_leaving_a_later_stop_of_a_task_that_was_looked_at_after_an_error(tmp_path: Path) -> None:
    program = FAILING + "\n    stop()\n    last = 1\n"
    with debugged(tmp_path / "job", program, reason="ValueError: no") as process:
        _, seen = typed(process, "c", "q")
        assert seen.shown[-2:] == [
            "[Leave? The task goes on without a debugger.]", "[the task goes on without a debugger]",
        ]  # fmt: skip
        process.rest()


def test_nobody_says_that_the_task_goes_on_when_nobody_answered(paused: Debugged) -> None:
    def silent() -> str:
        session._client.disconnect = lambda: False  # type: ignore[method-assign]
        return "q"

    session, typist = opened(paused, silent)
    session.run()
    assert typist.shown[-1].startswith("the debugger does not answer; the task goes on once")
    session._client.close()
    paused.rest()


def test_a_fault_of_ours_is_not_the_end_of_the_session(paused: Debugged) -> None:
    def broken() -> str:
        session._process.threads = lambda: 1 / 0  # type: ignore[method-assign,assign,return-value]
        return "threads"

    session, typist = opened(paused, broken, "total", "q")
    assert session.run() is End.LEFT
    assert "this failed: ZeroDivisionError: division by zero\n3\n" in typist.text
    paused.rest()


def test_ctrl_c_at_the_question_stays(paused: Debugged) -> None:
    def interrupt(_question: str) -> bool:
        raise KeyboardInterrupt

    typist = Typist(["q", "total"])
    assert Session(DapClient(paused.dial()), paused.stop, typist.console(interrupt)).run() is End.LEFT
    assert typist.shown[-2:] == ["3", "the task goes on without a debugger"]
    assert "interrupted" not in typist.text
    paused.rest()
