"""What a line that is typed in a debugging session means."""

from __future__ import annotations

import re

from cloudrl.debug.dap import Refused

HELP = """\
w, where          the stack, the newest frame last       u, d [N]   one frame up, down
l [N | N, M | .]  source; again: what follows            ll         all lines near: 60
p EXPR, pp EXPR   a value, pretty; EXPR alone works      locals     variables of this frame
n, s, r           next line, step into, return           c          continue
b [FILE:]LINE[, CONDITION]                               a breakpoint; b alone lists them
cl N              clear a breakpoint                     threads    all; thread N: look at one
np, next paused   let this task go on, and go to the next one that is paused
q, Ctrl-D         leave; the task goes on                Ctrl-C     stop a task that runs
An empty line repeats the last command. !CODE runs code whose first word is a command."""

RESUMING = ("next", "step", "return", "continue", "next_paused")
WHILE_RUNNING = ("continue", "next_paused", "quit", "help")

_COMMANDS = {
    name: names.split()[0]
    for names in (
        "where w bt", "up u", "down d", "list l", "longlist ll", "value !", "print p", "pretty pp", "locals", "next n",
        "step s", "return r", "continue c cont", "break b", "clear cl", "threads", "thread", "next_paused np",
        "quit q exit", "help h ?",
    )
    for name in names.split()
}  # fmt: skip
"""What is typed -> the method that obeys, but for its underscore."""
_TAKE_CODE = ("value", "print", "pretty", "help")
_TAKE_MORE = ("up", "down", "list", "break", "clear", "thread")
_WORD = re.compile(r"\s*(\w+|[?!])\s*(.*)", re.DOTALL)
_EXIT = re.compile(r"(?:exit|quit)\s*\(\s*\)")
_OPERATOR = re.compile(r"[=\[(<>]|\.[^\W\d]|(?:[-+*%&|^@!]|//?|\*\*)=|(?:[-+*%&|^@]|\*\*|//?)\s")
_AFTER_A_NAME = re.compile(r"[^\w\s]|(?:and|if|in|is|not|or)\b")
_DIGITS = 9


def parse(line: str) -> tuple[str, str]:
    """The command of a line and its argument; code is the command `value`.

    `c = 3`, `n += 1` and `n.shape` mean a variable, unlike in pdb, where some of them would go on.

    Raises:
        Refused: the command takes no argument, and the line does not look like code.
    """
    match = _WORD.fullmatch(line)
    word, argument = (match[1], match[2].strip()) if match else ("", line)
    if _EXIT.fullmatch(line.strip()):
        return "quit", ""
    command = _COMMANDS.get(word)
    if command == "next" and argument == "paused":
        return "next_paused", ""
    if command is None:
        return "value", line
    if command in _TAKE_CODE or not argument:
        return command, argument
    if (_OPERATOR if command in _TAKE_MORE else _AFTER_A_NAME).match(argument):
        return "value", line
    if command not in _TAKE_MORE:
        raise Refused(f"{word} takes no argument; !{line.strip()} runs it as code")
    return command, argument


def number(text: str, usage: str) -> int:
    """A number that is typed.

    Raises:
        Refused: the text is not a number, or has more than 9 digits; the message is the usage.
    """
    if not text.isdecimal() or len(text) > _DIGITS:
        raise Refused(usage)
    return int(text)


def lines(argument: str, current: int, listed: int) -> tuple[int, int]:
    """The first and the last line that `l` is to show.

    Args:
        argument: what was typed after it.
        current: line of the frame.
        listed: line that was shown last, 0 for none.
    """
    if not argument and listed:
        return listed + 1, listed + 11
    given = (
        [number(each.strip(), "l, l N, l N, M or l .") for each in argument.split(",")] if argument.strip(".") else []
    )
    if len(given) > 2:
        raise Refused("l, l N, l N, M or l .")
    if len(given) == 2:
        first, last = max(1, given[0]), given[1]
        return first, last if last >= first else first + last
    first = max(1, (given[0] if given else current) - 5)
    return first, first + 10
