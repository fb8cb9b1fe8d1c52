"""What became of a key that a release of verl does not have: moved, renamed or removed, by the table in YAML.

In the table, `*` stands for one or more names, and the same in the new key; a leading `*.` also for none.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloudrl.spec.yaml_core import load_value

_TABLE = Path(__file__).with_suffix(".yml")


@dataclass(frozen=True)
class Row:
    """One change of verl's configuration.

    Attributes:
        old: the key before it, with `*`.
        since: the first release on PyPI in which the old key is gone.
        source: commit and pull request, or the file of a wheel.
        to: where its value belongs now, with `+` if Hydra needs one; the first that a release has counts. Empty if the
            key was removed.
        values: old value -> new one, in lower case; any other is kept.
        advice: what to do where no override can say it.
    """

    old: str
    since: str
    source: str
    to: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""


@dataclass(frozen=True)
class Change:
    """What became of one key.

    Attributes:
        since: the first release without it.
        key: the new key, with `+` if Hydra needs one; "" for a removed key.
        values: old value -> new one, in lower case.
        advice: what to do where no override can say it.
    """

    since: str
    key: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""

    def value(self, old: str) -> str:
        """The value as the new key takes it."""
        return self.values.get(old.lower(), old)


@functools.cache
def rows() -> tuple[Row, ...]:
    """The table, newest change first."""
    table = load_value(_TABLE.read_text(encoding="utf-8"), _TABLE.name)
    return tuple(
        Row(
            old=row["from"], since=str(row["since"]), source=row["source"], to=tuple(row.get("to", ())),
            values=row.get("values", {}), advice=row.get("advice", ""),
        )
        for row in table
    )  # fmt: skip


def change_of(key: str, release: str, has_key: Callable[[str], bool]) -> Change | None:
    """What became of a key that a release does not have; None if verl never had it, or has not lost it yet.

    Args:
        key: without prefix.
        release: of verl, such as `0.9.1`.
        has_key: whether the configuration has a key.
    """
    for row in rows():
        match = _pattern(row.old).fullmatch(key)
        if match is None or _numbers(row.since) > _numbers(release):
            continue
        targets = [_filled(target, match.groups()) for target in row.to]
        moved = next((target for target in targets if target.startswith("+") or has_key(target)), "")
        if moved or not row.to:
            return Change(row.since, moved, row.values, row.advice)
    return None


@functools.cache
def _pattern(old: str) -> re.Pattern[str]:
    names = r"([\w-]+(?:\.[\w-]+)*?)"
    start = rf"(?:{names}\.)?" if old.startswith("*.") else ""
    return re.compile(start + re.escape(old.removeprefix("*.") if start else old).replace(r"\*", names))


def _filled(target: str, names: tuple[str | None, ...]) -> str:
    for name in names:
        target = target.replace("*.", "", 1) if name is None else target.replace("*", name, 1)
    return target


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release))
