"""Logs of many nodes as one stream of lines, in the order of their times.

Most lines do not say when they were written. One that does is believed, unless it says a time after that at which it
was kept; any other was written after the line above it, and before it was kept.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from fnmatch import fnmatchcase
from itertools import chain, dropwhile, groupby, islice, takewhile
from operator import attrgetter, itemgetter

from cloudrl.errors import InputError
from cloudrl.logs.archive import Archive, LogFile
from cloudrl.logs.causes.times import stamp
from cloudrl.logs.sent_files import by_own_names
from cloudrl.saves.archive import LOGS
from cloudrl.verl.metrics import without_ansi

AROUND_S = 30.0
"""To either side of a moment."""
_CLOCKS_AGREE_S = 60.0
"""Those of a node and of the server of its volume."""
_AT_ONCE = 8
_NO_LOGS = (".json", ".jsonl")
_BEGINS_WITH_A_DAY = re.compile(r"\d{4}-")
_LONG_ID = re.compile(r"([0-9a-f]{8})[0-9a-f]{40,}")


@dataclass(frozen=True)
class LogLine:
    """One line.

    Attributes:
        at: when it was written, or somewhat earlier: seconds since the epoch.
        rank: of the node.
        log: its name, such as `raylet.out`, with the beginnings of long ids: `worker-ID-JOB-PID.err`.
        text: without colours, with files that were sent with a job by their own names.
    """

    at: float
    rank: int
    log: str
    text: str


def log_lines(
    archive: Archive,
    files: Iterable[LogFile],
    *,
    name: str = "*",
    pattern: re.Pattern[str] | None = None,
    around: float | None = None,
) -> Iterator[LogLine]:
    """The lines of files by their times.

    Args:
        archive: That has them.
        files: Those of a run, or of one node.
        name: A pattern for names of files as `LogLine` has them, such as `worker-*`; those after `raylet.out`, such as
            `raylet.out~2`, count as that one.
        pattern: What lines must contain.
        around: A moment; lines are left out that are not of its surroundings.
    """
    files = list(files)
    nodes = {(file.session, file.rank) for file in files}
    offsets = {node: archive.utc_offset_s(*node) for node in nodes}
    since, until = (0.0, float("inf")) if around is None else (around - AROUND_S, around + AROUND_S)
    streams = [
        _lines(archive, file, offsets[file.session, file.rank], since, until)
        for file in files
        if not file.path.partition("~")[0].endswith(_NO_LOGS) and _is_called(file, name)
        and file.modified_at >= since - _CLOCKS_AGREE_S
    ]  # fmt: skip
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        lines = heapq.merge(*pool.map(_begun, streams), key=attrgetter("at"))
    return (line for line in lines if pattern is None or pattern.search(line.text))


def moment(text: str, newest: float) -> float:
    """What a user calls a moment, as seconds since the epoch: `13:05`, `13:05:10Z` or `2026-11-23 13:05:10`.

    Args:
        text: In this machine's time zone, unless it names another.
        newest: When the logs end; a time without a day is the last one before.

    Raises:
        InputError: The text is not a time.
    """
    try:
        text = re.sub("Z$", "+00:00", text)  # Python 3.10 does not know it
        if _BEGINS_WITH_A_DAY.match(text):
            return datetime.fromisoformat(text).timestamp()
        clock = time.fromisoformat(text)
        day = datetime.fromtimestamp(newest, clock.tzinfo).astimezone(clock.tzinfo)
        at = datetime.combine(day, clock, day.tzinfo)
    except ValueError:
        raise InputError(f"{text!r} is not a time", hint="Such as 13:05:10, or '2026-11-23 13:05:10'") from None
    return (at if at.timestamp() <= newest + AROUND_S else at - timedelta(days=1)).timestamp()


def _lines(archive: Archive, file: LogFile, offset_s: float, since: float, until: float) -> Iterator[LogLine]:
    dated = _dated(archive.dated_lines(file, since - _CLOCKS_AGREE_S), offset_s)
    lines = (LogLine(at, file.rank, _shown(file), by_own_names(without_ansi(text))) for at, text in dated)
    return dropwhile(lambda line: line.at < since, takewhile(lambda line: line.at <= until, lines))


def _begun(lines: Iterator[LogLine]) -> Iterator[LogLine]:
    """The same, once the first of them is here: each of hundreds of logs may be a question to another node."""
    return chain(list(islice(lines, 1)), lines)


def _dated(lines: Iterable[tuple[str, float]], offset_s: float) -> Iterator[tuple[float, str]]:
    """Lines with their times, which never go back."""
    at = 0.0
    for kept_at, group in groupby(lines, key=itemgetter(1)):
        stamped = [(text, _believed(text, offset_s, kept_at)) for text, _ in group]
        at = at or next((printed_at for _, printed_at in stamped if printed_at), kept_at)
        for text, printed_at in stamped:
            at = max(at, printed_at or at)
            yield at, text
        at = max(at, kept_at)


def _believed(text: str, offset_s: float, kept_at: float) -> float | None:
    stamped_at = stamp(text)
    return stamped_at - offset_s if stamped_at is not None and stamped_at - offset_s < kept_at + 1 else None


def _is_called(file: LogFile, name: str) -> bool:
    """Also by its last part, and whichever of the files of one name it is: Ray rotates a log that is long."""
    shown = _shown(file)
    first = shown.partition("~")[0]
    return any(fnmatchcase(spelling, name) for spelling in (shown, first, first.rpartition("/")[2]))


def _shown(file: LogFile) -> str:
    return _LONG_ID.sub(r"\1", file.path.removeprefix(f"{LOGS}/"))
