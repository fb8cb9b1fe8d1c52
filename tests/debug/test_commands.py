"""What lines mean, without a process."""

import pytest

from cloudrl.debug import commands
from cloudrl.debug.dap import Refused


@pytest.mark.parametrize(
    ("line", "command", "argument"),
    [
        ("n", "next", ""),
        ("next paused", "next_paused", ""),
        ("n += 1", "value", "n += 1"),
        ("c != 0", "value", "c != 0"),
        ("s in rows", "value", "s in rows"),
        ("n is None", "value", "n is None"),
        ("r - 1", "value", "r - 1"),
        ("c.x", "value", "c.x"),
        ("d -= 2", "value", "d -= 2"),
        ("l[0]", "value", "l[0]"),
        ("u 2", "up", "2"),
        ("l .", "list", "."),
        ("b ./main.py:3", "break", "./main.py:3"),
        ("b /a/main.py:3, x == 1", "break", "/a/main.py:3, x == 1"),
        ("exit()", "quit", ""),
        (" quit( ) ", "quit", ""),
        ("pp a, b", "pretty", "a, b"),
        ("p -1", "print", "-1"),
        ("!c", "value", "c"),
        ("total", "value", "total"),
        ("h n", "help", "n"),
    ],
)
def test_a_line(line: str, command: str, argument: str) -> None:
    assert commands.parse(line) == (command, argument)


@pytest.mark.parametrize("line", ["c 3", "n foo", "np x", "w 2"])
def test_a_command_without_an_argument_does_nothing_with_one(line: str) -> None:
    with pytest.raises(Refused, match=f"takes no argument; !{line} runs it as code"):
        commands.parse(line)


@pytest.mark.parametrize("text", ["9" * 5000, "", "-1", "x"])
def test_a_number_is_one(text: str) -> None:
    with pytest.raises(Refused, match="usage"):
        commands.number(text, "usage")


@pytest.mark.parametrize(
    ("argument", "listed", "shown"),
    [
        ("", 0, (15, 25)),
        ("", 25, (26, 36)),
        (".", 25, (15, 25)),
        ("3", 25, (1, 11)),
        ("0, 3", 0, (1, 3)),
        ("5, 9", 0, (5, 9)),
        ("5, 3", 0, (5, 8)),
    ],
)
def test_the_lines_of_a_list(argument: str, listed: int, shown: tuple[int, int]) -> None:
    assert commands.lines(argument, 20, listed) == shown


@pytest.mark.parametrize("argument", ["foo", "1, 2, 3", "1,", "9" * 5000])
def test_no_lines(argument: str) -> None:
    with pytest.raises(Refused, match="l N, M"):
        commands.lines(argument, 20, 0)
