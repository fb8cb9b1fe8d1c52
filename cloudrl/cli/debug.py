"""`cloudrl debug`: tasks that wait for a debugger, and sessions with them."""

from __future__ import annotations

import re
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import ClusterOption, JsonOption
from cloudrl.cli._terminal import Terminal
from cloudrl.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudrl.debug.console import Console
    from cloudrl.protocol.stops import Stop
    from cloudrl.sdk.debugging import PausedTasks

_COLUMNS = ("#", "node", "rank", "actor", "function", "file:line", "since", "why")
_CUT = ("job", "actor", "function", "file:line", "why")
_KEPT_END, _SHORTEST = ("job", "file:line"), 8
"""Where the end of a name tells more than its start, and how much of each stays at least."""


def debug(
    number: Annotated[
        int | None, typer.Argument(metavar="N", help="Number of the task. Default: the only one, in a terminal.")
    ] = None,
    vscode: Annotated[
        bool, typer.Option("--vscode", help="Let VS Code attach: write .vscode/launch.json, until Ctrl-C.")
    ] = False,
    only_list: Annotated[bool, typer.Option("--list", "-l", help="List only, even if there is just one.")] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """List the tasks that wait for a debugger, or debug one in this terminal, with the commands of pdb.

    Tasks of jobs submitted with --debug wait at breakpoint(), and with --post-mortem where they fail. When the session
    ends, or the connection breaks, the task goes on by itself.
    """
    from cloudrl.sdk.debugging import PausedTasks

    if vscode + as_json + only_list > 1 or ((vscode or as_json or only_list) and number is not None):
        raise InputError("N, --vscode, --list and --json exclude each other", hint="Pass only one of them")
    with Terminal() as notices:
        tasks = PausedTasks(cluster, on_progress=notices)
        if vscode:
            _serve_editors(tasks, notices)
            return
        stops = () if number is not None else tasks.stops(notices)
        stop = tasks.choose(number, notices) if number is not None else _only(stops)
    if as_json:
        _output.as_json([asdict(stop) for stop in stops])
    elif stop is None or only_list or (number is None and not _output.is_interactive()):
        _list(tasks, stops)
    else:
        _say_what_is_left(tasks, tasks.debug(stop, _console(), Path.cwd()))


def _only(stops: Sequence[Stop]) -> Stop | None:
    return stops[0] if len(stops) == 1 and not stops[0].attached else None


def _list(tasks: PausedTasks, stops: Sequence[Stop]) -> None:
    if not stops:
        _output.note(
            f"Nothing is paused on {tasks.cluster}. Put breakpoint() into the code, and submit it with --debug;"
        )
        _output.note("with --post-mortem a task also stops where it fails.")
        _output.hint(f"cloudrl submit grpo-tiny -c {tasks.ref} --debug")
        return
    several = len({stop.job for stop in stops}) > 1
    columns = ("job", *_COLUMNS) if several else _COLUMNS
    rows = [_row(place, stop, time.time()) for place, stop in enumerate(stops, 1)]
    if several:
        rows = [(stop.job, *row) for stop, row in zip(stops, rows, strict=True)]
    if sys.stdout.isatty():
        rows = _fitted(columns, rows, shutil.get_terminal_size().columns)
    _output.table(columns, rows)
    free = next((n for n, stop in enumerate(stops, 1) if not stop.attached), None)
    if free is not None:
        _output.hint(f"Debug one: cloudrl debug {free} -c {tasks.ref}")


def _row(number: int, stop: Stop, now: float) -> tuple[str, ...]:
    rank = "" if stop.rank is None else str(stop.rank)
    why = re.sub(r"\w+\.", "", stop.reason.partition(":")[0]) + ", attached" * stop.attached  # of an error its class
    place = f"{Path(stop.file).name}:{stop.line}"
    return str(number), str(stop.node), rank, stop.actor, stop.method, place, _since(now - stop.since), why


def _fitted(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[tuple[str, ...]]:
    """Rows that no terminal of that width folds: jobs by the ends in which they differ, the longest names cut."""
    table = [[_output.visible(cell, keep="") for cell in row] for row in rows]
    if "job" in columns:
        for row, end in zip(table, _ends([row[0] for row in table]), strict=True):
            row[0] = end
    cut = {name: columns.index(name) for name in _CUT if name in columns}
    while table:
        widths = [max(len(name), *(len(row[place]) for row in table)) for place, name in enumerate(columns)]
        place = max(cut.values(), key=lambda place: widths[place])
        if sum(widths) + 2 * (len(columns) - 1) <= width or widths[place] <= _SHORTEST:
            break
        for row in table:
            row[place] = _cut(row[place], widths[place] - 1, keep_end=columns[place] in _KEPT_END)
    return [tuple(row) for row in table]


def _cut(text: str, size: int, *, keep_end: bool) -> str:
    if len(text) <= size:
        return text
    bare = text.removeprefix("..") if keep_end else text.removesuffix("..")
    return f"..{bare[2 - size :]}" if keep_end else f"{bare[: size - 2]}.."


def _ends(jobs: Sequence[str]) -> list[str]:
    """Without the words that all of them start with."""
    words = [job.split("-") for job in jobs]
    same = 0
    while len({tuple(word[: same + 1]) for word in words}) == 1 and all(len(word) > same + 1 for word in words):
        same += 1
    return ["-".join(word[same:]) for word in words]


def _since(seconds: float) -> str:
    from cloudrl.units import duration_text

    return duration_text(seconds if seconds < 60 else seconds // 60 * 60).removesuffix(" 00 s")


def _console() -> Console:
    """Of this terminal, or of the program that holds the pipes; what their encoding lacks is shown escaped."""
    from cloudrl.debug.console import Console

    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    is_person = sys.stdin.isatty() and sys.stdout.isatty()
    if is_person:
        with suppress(ImportError):
            import readline  # noqa: F401 - `input` takes it for editing and for the lines from before
    return Console(
        read=_read_person if is_person else _read_program,
        say=lambda text: _output.data(_output.visible(text)),
        note=lambda text: _output.note(f"[{text}]"),
        confirm=_output.ask if _output.is_interactive() else lambda _question: True,
    )


def _read_person(prompt: str) -> str:
    try:
        return input(_output.visible(prompt, keep=""))
    except (EOFError, KeyboardInterrupt):
        _output.note("")
        raise


def _read_program(prompt: str) -> str:
    if sys.stdin.isatty():  # a person whose output goes elsewhere
        sys.stderr.write(_output.visible(prompt, keep=""))
        sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def _say_what_is_left(tasks: PausedTasks, had: Sequence[Stop]) -> None:
    from cloudrl.errors import CloudrlError

    with suppress(CloudrlError):
        if left := tasks.others(had):
            _output.note(f"{len(left)} more {'is' if len(left) == 1 else 'are'} paused")
            _output.hint(f"cloudrl debug -c {tasks.ref}")


def _serve_editors(tasks: PausedTasks, notices: Terminal) -> None:
    from cloudrl.sdk.debug_ports import LAUNCH_FILE, DebugPorts

    with DebugPorts(tasks, Path.cwd(), notices) as ports:
        _output.data(ports.front.url)
        _output.note(
            f"Each paused task has an entry in {LAUNCH_FILE}: in VS Code, open this folder, then Run and Debug."
        )
        _output.note("For Ray's extension (Ray Distributed Debugger), add a cluster with the address above.")
        _output.note("Only this user's programs get through. Ctrl-C closes the ports and removes the entries.")
        try:
            with suppress(KeyboardInterrupt):
                ports.keep()
        finally:
            with suppress(OSError):  # the terminal may be gone
                _output.note("the ports are closed; tasks that were attached go on without a debugger")
