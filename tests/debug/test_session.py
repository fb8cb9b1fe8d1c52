"""Sessions with a real debugpy in a process of its own."""

from dataclasses import replace
from pathlib import Path

import pytest
from debug.debugged import FAILING, Debugged, debugged, typed

from cloudrl.debug.session import End

pytestmark = pytest.mark.io


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
