"""The known failures: the tables in `known/`, and the one way to ask them.

The first row that fits is taken, so that in a table, and in the order of the tables, what is particular comes before
what is general. A pattern is a Python regular expression for one line, or for a few of one process (`.` ends at a
line). It sees neither the code that tracebacks quote nor what messages only suppose (`guesses.py`), and its quantifiers
have bounds, so that no line takes long.
"""

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from cloudrl.logs.causes.guesses import facts_of
from cloudrl.spec.yaml_core import load_value

_FOLDER = Path(__file__).with_name("known")
_TABLES = (
    "memory", "storage", "settings", "data", "models", "internet", "collectives", "gpus", "software", "own_code",
    "machines", "command", "followers",
)  # fmt: skip
"""In the order in which they are asked."""
_LONGEST = 20_000
"""Characters of a text that are looked at: a log may hold a line of any length."""


@dataclass(frozen=True)
class Signature:
    """A failure by what it prints.

    Attributes:
        name: of the row.
        pattern: that finds it.
        cause: what it means, for a person who knows neither Ray nor verl.
        remedy: what to do, with a command or an override.
        example: a line that the pattern finds.
        source: where the line was seen: public issues, or project, release and file.
        follows: None for a cause; "peer" where it only says that another process has gone or points to another error,
            "silence" where its process has waited for another one in vain, "report" where it is a cause of the process
            that died and of no other.
        is_vague: whether it is a cause only where nothing else is known.
        is_end: whether it counts only as the last words of the job's own command: a shell goes on after most of them.
    """

    name: str
    pattern: re.Pattern[str]
    cause: str
    remedy: str
    example: str
    source: str
    follows: str | None = None
    is_vague: bool = False
    is_end: bool = False


@cache
def signatures() -> tuple[Signature, ...]:
    """All rows, in the order in which they are asked."""
    return tuple(_signature(row) for table in _TABLES for row in _rows(_FOLDER / f"{table}.yml"))


def _rows(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = load_value(table.read_text(encoding="utf-8"), table.name)
    return rows


def _signature(row: dict[str, Any]) -> Signature:
    return Signature(**{**row, "pattern": re.compile(row["pattern"], re.MULTILINE)})


@lru_cache(maxsize=4096)  # workers print the same lines, and the driver repeats them
def recognise(text: str, *, is_end: bool = False) -> Signature | None:
    """The first row that knows what the text says has happened, and not what it supposes; None where none does.

    Args:
        text: a line, or a few of one process.
        is_end: whether it is the end of what the job's own command has printed.
    """
    shown = text if len(text) <= _LONGEST else text[: _LONGEST // 2] + "\n" + text[-_LONGEST // 2 :]
    facts = facts_of(shown)
    rows = (row for row in signatures() if is_end or not row.is_end)
    return next((row for row in rows if row.pattern.search(facts)), None)
