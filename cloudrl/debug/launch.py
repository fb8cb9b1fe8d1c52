"""Entries in VS Code's `.vscode/launch.json`, which is JSON with comments that its user has written. Pure.

The text is changed only where our own entries stand: comments, order and layout of everything else stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from cloudrl.protocol.stops import Stop

OURS = "cloudrl: "
"""What the names of our entries start with; the cluster follows."""
_NOT_CODE = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[\]}])', re.DOTALL)
EMPTY = '{\n    "version": "0.2.0",\n    "configurations": []\n}\n'
"""A file of ours without an entry."""


def entry(stop: Stop, port: int, cluster: str) -> dict[str, Any]:
    """What lets VS Code attach to a stop through a port of this machine.

    With `justMyCode`, which VS Code has on, the process would run through without a stop (debugpy 1.8.22). "." is the
    folder in which the process runs (pydevd_process_net_command_json.py).
    """
    who = f"{stop.actor} rank {stop.rank}" if stop.rank is not None else stop.actor
    return {
        "name": f"{OURS}{cluster}, {who}, node {stop.node}, pid {stop.pid}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "justMyCode": False,
        "pathMappings": [{"localRoot": "${workspaceFolder}", "remoteRoot": "."}],
    }


def port_of(value: Any, cluster: str) -> int | None:
    """Where an entry leads that `entry` has made for a task of that cluster; None for any other."""
    if not isinstance(value, dict) or not str(value.get("name", "")).startswith(f"{OURS}{cluster}, "):
        return None
    connect = value.get("connect")
    if value.get("request") != "attach" or not isinstance(connect, dict) or connect.get("host") != "127.0.0.1":
        return None
    port = connect.get("port")
    return port if isinstance(port, int) and 0 < port < 65536 else None


def merged(text: str, entries: Sequence[dict[str, Any]], is_old: Callable[[Any], bool]) -> str | None:
    """The text of the file with these entries in place of old ones; None where it cannot be read.

    Args:
        text: of the file, "" if the file does not exist.
        entries: ours.
        is_old: whether an entry goes.
    """
    before = text.removeprefix("\ufeff")
    mark = text[: len(text) - len(before)]
    old = _read(before) if before.strip() else {}
    if not isinstance(old, dict) or not isinstance(old.get("configurations", []), list):
        return None
    if not entries and "configurations" not in old:
        return text
    new = before if before.strip() else EMPTY
    if "configurations" not in old and before.strip():
        new = _with_configurations(new, is_empty=not old)
    new = _inserted(_without(new, is_old), entries)
    others = [each for each in old.get("configurations", []) if not is_old(each)]
    wanted = {**({"version": "0.2.0"} if not before.strip() else {}), **old, "configurations": [*others, *entries]}
    return mark + new if _read(new) == wanted else None


def _without(text: str, is_old: Callable[[Any], bool]) -> str:
    """The last one first, so that the places of the others stay."""
    for (start, end), value in reversed(_elements(text)):
        if not is_old(value):
            continue
        plain = _plain(text)
        after, before = re.compile(r"\s*,").match(plain, end), re.compile(r",\s*$").search(plain, 0, start)
        if after is None and before is None:  # the only one may have a comma, too
            after = re.compile(r"\s*,").match(_NOT_CODE.sub(_blank, text), end)
        if after is not None:
            between = text[end : after.end() - 1]
            text = _joined(text[:start], (between if between.strip() else "") + text[after.end() :])
        elif before is not None:  # the last one of several takes the comma before it along
            text = _joined(text[: before.start()] + text[before.start() + 1 : start], text[end:])
        else:
            text = _joined(text[:start], text[end:].lstrip() if text[end:].lstrip().startswith("]") else text[end:])
    return text


def _joined(head: str, tail: str) -> str:
    """Without the blanks between them, but for those that end a comment of the head's."""
    before = head.rstrip()
    ends_in_comment = any(
        found[0].startswith("//") and found.end() == len(before) for found in _NOT_CODE.finditer(before)
    )
    if ends_in_comment and not re.match(r"[ \t]*\r?\n", tail):
        before = head
    return before + tail


def _inserted(text: str, entries: Sequence[dict[str, Any]]) -> str:
    if not entries:
        return text
    eol = "\r\n" if "\r\n" in text else "\n"
    blocks = [eol.join("        " + line for line in json.dumps(each, indent=4).splitlines()) for each in entries]
    spans = _elements(text)
    new = f",{eol}".join(blocks)
    if spans:
        end = spans[-1][0][1]
        return f"{text[:end]},{eol}{new}{text[end:]}"
    start, _ = _array(text)
    rest = text[start + 1 :]
    is_empty = rest.lstrip().startswith("]")  # else it holds comments
    return f"{text[: start + 1]}{eol}{new}{f'{eol}    {rest.lstrip()}' if is_empty else rest}"


def _with_configurations(text: str, *, is_empty: bool) -> str:
    start = _plain(text).index("{") + 1
    return f'{text[:start]}\n    "configurations": []{"" if is_empty else ","}{text[start:]}'


def _plain(text: str) -> str:
    """The same length, as JSON: blanks in place of comments and of last commas."""
    return _LAST_COMMA.sub(_blank, _NOT_CODE.sub(_blank, text))


def _blank(match: re.Match[str]) -> str:
    token = match[0]
    return token if token.startswith('"') else re.sub(r"[^\n]", " ", token)


def _read(text: str) -> Any:
    """The value; None where it is not JSON with comments."""
    try:
        return json.loads(_plain(text))
    except (ValueError, RecursionError):
        return None


def _array(text: str) -> tuple[int, int]:
    """Where the list `configurations` of the outermost object starts and ends; of several the last, as JSON has it."""
    plain, decoder = _plain(text), json.JSONDecoder()
    place, span = _skip(plain, plain.index("{") + 1), (0, 0)
    while plain[place] != "}":
        key, place = decoder.raw_decode(plain, place)
        start = _skip(plain, _skip(plain, place) + 1)
        _, place = decoder.raw_decode(plain, start)
        if key == "configurations":
            span = start, place
        place = _skip(plain, place)
        if plain[place] == ",":
            place = _skip(plain, place + 1)
    return span


def _elements(text: str) -> list[tuple[tuple[int, int], Any]]:
    """Where each of the configurations stands, and its value."""
    plain, decoder = _plain(text), json.JSONDecoder()
    start, end = _array(text)
    place, spans = _skip(plain, start + 1), []
    while place < end - 1:
        value, last = decoder.raw_decode(plain, place)
        spans.append(((place, last), value))
        place = _skip(plain, last)
        if plain[place] == ",":
            place = _skip(plain, place + 1)
    return spans


def _skip(text: str, place: int) -> int:
    while text[place].isspace():
        place += 1
    return place
