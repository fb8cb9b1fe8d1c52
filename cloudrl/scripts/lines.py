"""What becomes of each line of a script or a YAML file: values for people and programs."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Fate(Enum):
    """What becomes of a line."""

    TAKEN = "taken over"
    DROPPED = "dropped"
    WRONG = "wrong"
    """It does not do what its author means."""
    UNKNOWN = "not understood"


@dataclass(frozen=True)
class Line:
    """One line, or several with one command.

    Attributes:
        fate: What becomes of it.
        text: What stands there, shortened.
        why: As what it is taken over, or why it is dropped.
        number: Where it stands; None for a part of a YAML file.
        file: Another file than the script, that it stands in.
        is_checked: Whether `check` says the same of the recipe.
    """

    fate: Fate
    text: str
    why: str
    number: int | None = None
    file: str = ""
    is_checked: bool = False

    def __str__(self) -> str:
        place = f"{self.file}:{self.number}" if self.file and self.number else f"{self.number or ''}"
        return f"{place:>4}  {self.fate.value}: {self.text}: {self.why}"


def in_order(lines: Iterable[Line]) -> tuple[Line, ...]:
    """By their place in the script, each once."""
    return tuple(sorted(dict.fromkeys(lines), key=lambda line: (line.file, line.number or 0)))
