"""Who types in a session, and reads."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Console:
    """The person or program at the other end of a session; what it is given to show may hold any characters.

    Attributes:
        read: shows a prompt and gives a line, as `input` does; EOFError at the end, KeyboardInterrupt for Ctrl-C.
        say: shows a result.
        note: shows something about the session.
        confirm: asks a question.
    """

    read: Callable[[str], str]
    say: Callable[[str], None]
    note: Callable[[str], None]
    confirm: Callable[[str], bool]
