"""Sessions with a real debugpy in a process of its own."""

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from child_processes import until
from debug.debugged import FAILING, Debugged, Typist, debugged, typed

from cloudrl.debug.console import Console
from cloudrl.debug.dap import DapClient, NoAnswer
from cloudrl.debug.relay import join
from cloudrl.debug.session import End, Session

pytestmark = pytest.mark.io


@pytest.fixture
def paused(tmp_path: Path) -> Iterator[Debugged]:
    with debugged(tmp_path / "job") as process:
        yield process


def test_it_looks_like_pdb(paused: Debugged) -> None:
    end, seen = typed(paused, "w", "l", "l", "s", "l", "u", "d", "r", "n", "n", "c")
    assert end is End.OVER
    assert (
        seen.text
        == """\
> main.py(9)train()
-> total = lessons.add(total, 100)
  main.py(13)<module>()
-> print("result", train(3, "a\\x1b[31mred\\nline"), flush=True)
> main.py(9)train()
-> total = lessons.add(total, 100)
  4  \tdef train(steps, name):
  5  \t    total = 0
  6  \t    for step in range(steps):
  7  \t        total = lessons.add(total, step)
  8  \t    stop()
  9  ->\t    total = lessons.add(total, 100)
 10  \t    rows = [name, total]
 11  \t    return rows
 12  \t
 13  \tprint("result", train(3, "a\\x1b[31mred\\nline"), flush=True)
*** [EOF]
> lessons.py(3)add()
-> result = total + more
  1  \tdef add(total, more):
  2  \t    '''Adds \x1b]0;title\x07.'''
  3  ->\t    result = total + more
  4  \t    return result
> main.py(9)train()
-> total = lessons.add(total, 100)
> lessons.py(3)add()
-> result = total + more
> main.py(9)train()
-> total = lessons.add(total, 100)
> main.py(10)train()
-> rows = [name, total]
> main.py(11)train()
-> return rows
[running; Ctrl-C stops it again]
[the process has ended]"""
    )
    assert set(seen.prompts) == {"(rank 1) "}
    assert paused.rest() == ["result ['a\\x1b[31mred\\nline', 103]"]


def test_values_are_what_repr_gives_and_can_be_changed(paused: Debugged) -> None:
    """A line that starts as a command does may be code."""
    lines = [
        "total", "p total, steps", "name", "pp list(range(40))", "locals", "nothing", "1 +", "total = 50", "s = 3",
        "p s", "! s",
    ]  # fmt: skip
    end, seen = typed(paused, *lines, "q")
    assert end is End.LEFT
    numbers = "\n".join([f"[{0},", *(f" {each}," for each in range(1, 39)), " 39]"])
    assert (
        seen.text.partition("100)\n")[2]
        == f"""\
3
(3, 3)
'a\\x1b[31mred\\nline'
{numbers}
name = 'a\\x1b[31mred\\nline'
step = 2
steps = 3
total = 3
*** NameError: name 'nothing' is not defined
*** SyntaxError: invalid syntax
3
3
[Leave? The task goes on without a debugger.]
[the task goes on without a debugger]"""
    )
    assert paused.rest() == ["result ['a\\x1b[31mred\\nline', 150]"]


def test_breakpoints_by_names_that_one_knows(paused: Debugged) -> None:
    end, seen = typed(
        paused, "b", "b lessons.py:3, more == 100", "b 11", "b nothing.py:3", "b what", "b", "c", "total, more", "l",
        "cl 1", "cl 9", "c", "q",
    )  # fmt: skip
    assert end is End.LEFT
    folder = paused.folder
    said = seen.text.partition("100)\n")[2].splitlines()
    assert said[:7] == [
        "no breakpoints; set one: b FILE:LINE",
        f"Breakpoint 1 at {folder}/lessons.py:3, if more == 100",
        f"Breakpoint 2 at {folder}/main.py:11",
        "*** no file nothing.py in the job's folder, and no imported module ends so",
        "*** b FILE:LINE, b LINE, or b FILE:LINE, CONDITION",
        f"1  {folder}/lessons.py:3, if more == 100",
        f"2  {folder}/main.py:11",
    ]
    assert "> lessons.py(3)add()\n-> result = total + more\n(3, 100)\n" in seen.text
    assert "  3 B->\t    result = total + more\n" in seen.text
    assert f"Deleted breakpoint 1 at {folder}/lessons.py:3, if more == 100\n*** cl N" in seen.text
    assert "> main.py(11)train()\n-> return rows\n" in seen.text
    paused.rest()


def test_a_post_mortem_stops_where_it_was_raised(tmp_path: Path) -> None:
    error = "ValueError: invalid literal for int() with base 10: 'forty'"
    with debugged(tmp_path / "job", FAILING, reason=error) as process:
        end, seen = typed(process, "p answer, right", "w", "q")
        assert end is End.LEFT
        assert (
            seen.text
            == f"""\
{error}
> main.py(5)score()
-> return int(answer) == right
('forty', 42)
  main.py(8)<module>()
-> score("forty")
> main.py(5)score()
-> return int(answer) == right
[Leave? The task fails, as it would have.]
[the task fails, as it would have]"""
        )
        assert process.rest() == ["done"]


def test_the_source_is_what_runs_also_where_the_folder_here_has_another(paused: Debugged, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "main.py").write_text("changed since\n")
    _, seen = typed(paused, "l .", "q", folder=mine)
    assert "[main.py is another here than there; this is what runs]" in seen.text
    assert "  8  \t    stop()" in seen.text
    assert "changed" not in seen.text


def test_a_file_of_the_job_s_package_is_named_as_here_wherever_it_lies(tmp_path: Path) -> None:
    """Ray runs what was pickled on another node under that node's path."""
    with debugged(tmp_path / "_ray_pkg_1") as process:
        process.stop = replace(process.stop, cwd="/of/another/node/_ray_pkg_1")
        _, seen = typed(process, "b main.py:11", "c", "q")
    assert seen.shown[0] == "> main.py(9)train()"
    assert seen.shown[2] == f"Breakpoint 1 at {tmp_path}/_ray_pkg_1/main.py:11"
    assert "> main.py(11)train()" in seen.shown


NOT_THERE = """
    from hook import stop
    import lessons

    code = "def gone():\\n    stop()\\n    return 5\\ngone()\\n"
    exec(compile(code, FOLDER + "/lib/gone.py", "exec"), {"stop": stop})
"""


def test_a_source_that_is_gone_there_comes_from_the_folder_here(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with debugged(folder, NOT_THERE.replace("FOLDER", repr(str(folder)))) as process:
        _, seen = typed(process, "l", "q")
        assert f"*** the source of {folder}/lib/gone.py is not to be had" in seen.text
    (tmp_path / "mine" / "lib").mkdir(parents=True)
    (tmp_path / "mine" / "lib" / "gone.py").write_text("def gone():\n    stop()\n    return 5\ngone()\n")
    with debugged(folder, NOT_THERE.replace("FOLDER", repr(str(folder)))) as process:
        _, seen = typed(process, "l", "q", folder=tmp_path / "mine")
        assert "  3  ->\t    return 5" in seen.text


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
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
            return "c"

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            end, seen = typed(process, interrupt, "1 + 1", "q")
        finally:
            signal.signal(signal.SIGINT, before)
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
    threading.Thread(target=join, args=(theirs, real), daemon=True).start()

    def cut() -> str:
        theirs.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):  # the thread may have done so already
            real.shutdown(socket.SHUT_RDWR)
        return "w"

    typist = Typist(["total", cut, "never typed"])
    console = Console(typist.read, typist.shown.append, typist.shown.append, lambda _question: True)
    session = Session(DapClient(ours), paused.stop, console)
    assert session.run() is End.LOST
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


def test_commands_that_need_a_stop_say_so_while_it_runs(tmp_path: Path) -> None:
    with debugged(tmp_path / "job", LOOPING) as process:

        def stops_meanwhile() -> str:
            session._process.resume("pause", session._current)
            until(lambda: session._client._events or select.select([session._client._socket], [], [], 0)[0], "it stops")
            return "1 + 1"

        typist = Typist(["c", "w", "h", stops_meanwhile, "q"])
        console = Console(typist.read, typist.shown.append, typist.shown.append, lambda _question: True)

        def interrupt() -> list[str]:
            """The session asks for other stops while it waits."""
            raise KeyboardInterrupt

        session = Session(DapClient(process.dial()), process.stop, console, others=interrupt)
        session._pause = lambda: None  # type: ignore[method-assign]  # as in code that is not Python
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


@pytest.mark.parametrize("line", ["c", "", "n", "np"])
def test_a_stop_that_came_at_the_prompt_is_shown_before_anything_goes_on(tmp_path: Path, line: str) -> None:
    with debugged(tmp_path / "job", TWICE) as process:

        def stops_meanwhile() -> str:
            (process.folder / "on").touch()
            until(lambda: session._client._events or select.select([session._client._socket], [], [], 0)[0], "it stops")
            return line

        typist = Typist(["c", stops_meanwhile, "second = 5", "q"])
        console = Console(typist.read, typist.shown.append, typist.shown.append, lambda _question: True)

        def interrupt() -> list[str]:
            raise KeyboardInterrupt

        session = Session(DapClient(process.dial()), process.stop, console, others=interrupt)
        session._pause = lambda: None  # type: ignore[method-assign]  # as in code that is not Python
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
        until(lambda: session._client._events or select.select([session._client._socket], [], [], 0)[0], "it stops")
        return "total"

    typist = Typist([slow, stopped, "q"])
    console = Console(typist.read, typist.shown.append, typist.shown.append, lambda _question: True)
    session = Session(DapClient(paused.dial()), paused.stop, console)
    assert session.run() is End.LEFT
    assert typist.prompts[1] == "(rank 1, running) "
    assert typist.text.partition("15 s")[2].startswith("\n> main.py(10)train()\n-> rows = [name, total]\n103\n")
    paused.rest()


def test_code_that_wants_to_end_the_process_is_an_error(paused: Debugged) -> None:
    end, seen = typed(paused, "__import__('sys').exit(3)", "if total: raise SystemExit('no')", "total", "exit()")
    assert end is End.LEFT
    assert "*** SystemExit: 3\n*** SystemExit: no\n3\n[Leave? " in seen.text
    assert paused.rest() == ["result ['a\\x1b[31mred\\nline', 103]"]


def test_values_are_printed_as_pdb_does(paused: Debugged) -> None:
    lines = ["p None", "None", "p total, 1", "pp total, name", "pp 1/0", "pp nothing", "p nothing", "pp {'a':1", "p"]
    _, seen = typed(paused, *lines, "q")
    said = seen.between("100)\n", "[Leave?").splitlines()
    assert said[:6] == [
        "None", "(3, 1)", "(3, 'a\\x1b[31mred\\nline')", "*** ZeroDivisionError: division by zero",
        "*** NameError: name 'nothing' is not defined", "*** NameError: name 'nothing' is not defined",
    ]  # fmt: skip
    assert said[6].startswith("*** SyntaxError: ")
    assert said[7:] == ["*** p EXPRESSION"]


def test_breakpoints_that_cannot_be(paused: Debugged) -> None:
    lines = ["b 99", "b 0", "b 3", "b 11, 1 +", f"b {'9' * 5000}", "b", "b lessons.py:3, nothing > 3", "c", "p more"]
    _, seen = typed(paused, *lines, "q")
    said = seen.between("100)\n", "[running").splitlines()
    main = f"{paused.folder}/main.py"
    assert said[:3] == [*[f"*** {main} has lines 1 to 13"] * 2, f"*** {main}:3: blank or comment"]
    assert said[3].startswith("*** SyntaxError: ")
    assert said[4:6] == ["*** b FILE:LINE, b LINE, or b FILE:LINE, CONDITION", "no breakpoints; set one: b FILE:LINE"]
    failed = "*** the condition of breakpoint 1 fails: NameError: name 'nothing' is not defined\n> lessons.py(3)add()"
    assert failed in seen.text
    assert seen.between("result = total + more\n", "[Leave").strip() == "100"


def test_what_was_interrupted_is_said_at_once(paused: Debugged) -> None:
    def sleep() -> str:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        return "__import__('time').sleep(4)"

    def later() -> str:
        until(lambda: not session._client.is_outstanding(session._process._outstanding[0]), "it is done")
        return "total"

    typist = Typist([sleep, "p total", "l", "n", "w", later, "l .", "q"])
    console = Console(typist.read, typist.shown.append, typist.shown.append, lambda _question: True)
    session = Session(DapClient(paused.dial()), paused.stop, console)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert session.run() is End.LEFT
    finally:
        signal.signal(signal.SIGINT, before)
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

    typist = Typist([silent])
    console = Console(typist.read, typist.shown.append, typist.shown.append, lambda _question: True)
    session = Session(DapClient(paused.dial()), paused.stop, console)
    session.run()
    assert typist.shown[-1].startswith("the debugger does not answer; the task goes on once")
    session._client.close()
    paused.rest()


def test_a_fault_of_ours_is_not_the_end_of_the_session(paused: Debugged) -> None:
    def broken() -> str:
        session._process.threads = lambda: 1 / 0  # type: ignore[method-assign,assign,return-value]
        return "threads"

    typist = Typist([broken, "total", "q"])
    console = Console(typist.read, typist.shown.append, typist.shown.append, lambda _question: True)
    session = Session(DapClient(paused.dial()), paused.stop, console)
    assert session.run() is End.LEFT
    assert "this failed: ZeroDivisionError: division by zero\n3\n" in typist.text
    paused.rest()


def test_ctrl_c_at_the_question_stays(paused: Debugged) -> None:
    def interrupt(_question: str) -> bool:
        raise KeyboardInterrupt

    typist = Typist(["q", "total"])
    console = Console(typist.read, typist.shown.append, typist.shown.append, interrupt)
    assert Session(DapClient(paused.dial()), paused.stop, console).run() is End.LEFT
    assert typist.shown[-2:] == ["3", "the task goes on without a debugger"]
    assert "interrupted" not in typist.text
    paused.rest()
