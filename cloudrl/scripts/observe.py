"""Runs a script until it comes to its training: with the files, variables and arguments that it wants."""

import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cloudrl.errors import InputError
from cloudrl.scripts.programs import Kind, is_override, read_program
from cloudrl.scripts.sandbox import HOSTNAME, SECONDS, Call, Play, Recording, run

_ROUNDS = 12
_MESSAGE = re.compile(r"^(?P<file>.+?): line (?P<line>\d+): (?P<text>.*)$", re.MULTILINE)
_MISSING = re.compile(r"(?P<cd>cd: |pushd: )?(?P<path>[^:\n]+): No such file or directory")
_OF_TOOL = re.compile(
    r"^(?:cp|mv|cat|ls|sed|grep|head|tail|realpath|readlink|stat|wc|awk|jq): (?:\w+ )*?'?(?P<path>/[^':\n]+)'?: "
    r"No such file or directory$",
    re.MULTILINE,
)
_UNBOUND = re.compile(r"\$?(?P<name>[A-Za-z_]\w*|\d+): unbound variable")
_REQUIRED = re.compile(r"\$?(?P<name>[A-Za-z_]\w*|\d+): (?P<why>.+)")
_BUILTINS = frozenset(
    [
        "alias",
        "bg",
        "bind",
        "break",
        "builtin",
        "caller",
        "cd",
        "command",
        "compgen",
        "complete",
        "continue",
        "declare",
        "dirs",
        "disown",
        "echo",
        "enable",
        "eval",
        "exec",
        "exit",
        "export",
        "false",
        "fc",
        "fg",
        "fork",
        "getopts",
        "hash",
        "help",
        "history",
        "jobs",
        "kill",
        "let",
        "local",
        "logout",
        "mapfile",
        "popd",
        "printf",
        "pushd",
        "pwd",
        "read",
        "readarray",
        "readonly",
        "return",
        "set",
        "shift",
        "shopt",
        "source",
        "suspend",
        "test",
        "times",
        "trap",
        "true",
        "type",
        "typeset",
        "ulimit",
        "umask",
        "unalias",
        "unset",
        "wait",
        "syntax",
        "warning",
    ]
)
_LOGS = (".log", ".txt", ".out", ".err", ".json", ".jsonl", ".yaml", ".yml", ".csv", ".md")
_HEAD: Mapping[str, str] = {
    "MASTER_ADDR": HOSTNAME, "MASTER_PORT": "6379", "RANK": "0", "NODE_RANK": "0", "LOCAL_RANK": "0",
    "GROUP_RANK": "0", "PET_NODE_RANK": "0", "OMPI_COMM_WORLD_RANK": "0", "SKYPILOT_NODE_RANK": "0",
    "DSTACK_NODE_RANK": "0", "DSTACK_MASTER_NODE_IP": "10.0.0.1", "SKYPILOT_NODE_IPS": "10.0.0.1",
    "HEAD_NODE_ADDRESS": HOSTNAME, "HEAD_NODE": HOSTNAME, "RAY_ADDRESS": "http://127.0.0.1:8265",
    "RAY_DASHBOARD_ADDRESS": "http://127.0.0.1:8265", "MLP_ROLE_INDEX": "0", "ARNOLD_ID": "0",
    "MLP_WORKER_0_HOST": HOSTNAME, "ARNOLD_WORKER_0_HOST": HOSTNAME, "ARNOLD_WORKER_0_PORT": "6379",
}  # fmt: skip
"""Variables by which a script knows that it runs on the first node, and where that is."""
_USED = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)\}|(?P<bare>[A-Za-z_]\w*))")
_COMMENT = re.compile(r"(?m)^\s*#.*$")
_MARK = "cloudrlunset"


@dataclass(frozen=True)
class Observed:
    """A script that has been run.

    Attributes:
        recording: Of its last run.
        play: How that was.
        given: Variables that were set so that it takes itself for the first node.
        unset: Variables that have no value, though arguments of the training hold them -> those arguments' keys.
    """

    recording: Recording
    play: Play
    given: tuple[str, ...] = ()
    unset: Mapping[str, tuple[str, ...]] = ()  # type: ignore[assignment]


class Wanted(InputError):
    """The script stops without a variable or an argument."""


def observe(play: Play, *, isolated: bool = True, shown: str, play_once: Callable[..., Recording] = run) -> Observed:
    """Run a script as often as it takes to come to its training.

    Args:
        play: The script.
        isolated: As for `cloudrl.scripts.sandbox.run`.
        shown: What messages call it.
        play_once: Runs it.

    Raises:
        Wanted: It stops without a variable or an argument; the message has its words.
        InputError: It does not end, or needs too much memory.
        NotIsolated: There is no isolation here.
    """
    text = _COMMENT.sub("", play.content.decode(errors="replace"))
    head = {name: value for name, value in _HEAD.items() if name not in play.env and name in unset_names(text, play)}
    play = replace(play, env={**head, **play.env})
    for _ in range(_ROUNDS):
        recording = play_once(play, isolated=isolated)
        missing = _missing(recording, play)
        if not missing:
            break
        play = replace(play, missing={**play.missing, **missing})
    if recording.status not in (0, None):  # it may ask for a file that only the nodes have
        other = replace(play, present=True)
        if len(trainings(again := play_once(other, isolated=isolated))) > len(trainings(recording)):
            play, recording = other, again
    if head.get("MASTER_ADDR") and not trainings(recording):  # it may compare addresses and not names
        other = replace(play, env={**play.env, "MASTER_ADDR": "10.0.0.1"})
        if trainings(again := play_once(other, isolated=isolated)):
            play, recording = other, again
    if recording.over and not trainings(recording):
        what = f"did not end within {SECONDS:.0f} s" if recording.over == "time" else "needs too much memory"
        raise InputError(f"{shown} {what}, and started no training before{_where(recording)}")
    _refuse_wanting(recording, shown, unset_names(text, play), play.arguments)
    return Observed(recording, play, tuple(head), _unset_in_arguments(recording, play, isolated, play_once))


def trainings(recording: Recording) -> list[Call]:
    """The calls that start a training."""
    return [call for call in recording.calls if (found := read_program(call)) and found.kind is Kind.TRAINING]


def unset_names(text: str, play: Play) -> list[str]:
    """Variables that a script uses without a default, and that nothing in its text sets."""
    used = dict.fromkeys(match["braced"] or match["bare"] for match in _USED.finditer(text))
    return [name for name in used if not _is_set(name, text) and name not in play.env]


def _is_set(name: str, text: str) -> bool:
    if name.startswith(("BASH", "FUNC", "OPT", "PIPE")) or name in _OF_BASH:
        return True
    declares = r"(local|declare|typeset|read|readarray|mapfile|getopts)"
    assigned = rf"(?<![\w$.])({name}(\[[^\]]*\])?\+?=|for\s+{name}\b|{declares}\b[^\n;|]*\b{name}\b)"
    return re.search(assigned, text) is not None or re.search(rf"\$\{{{name}:?[-=]", text) is not None


_OF_BASH = frozenset(
    [
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TERM",
        "PATH",
        "PWD",
        "OLDPWD",
        "RANDOM",
        "LINENO",
        "SECONDS",
        "PPID",
        "UID",
        "EUID",
        "HOSTNAME",
        "REPLY",
        "IFS",
        "SHLVL",
        "HOSTTYPE",
        "OSTYPE",
        "MACHTYPE",
        "EPOCHSECONDS",
        "EPOCHREALTIME",
        "GROUPS",
        "DIRSTACK",
        "LC_ALL",
        "LANG",
    ]
)


def _missing(recording: Recording, play: Play) -> dict[str, str]:
    """Paths that the script has asked for in vain, and that were not made yet."""
    found = {}
    for message in _MESSAGE.finditer(recording.output):
        match = _MISSING.fullmatch(message["text"])
        if match is None:
            continue
        is_folder = match["cd"] is not None
        cwd = next(
            (call.cwd for call in reversed(recording.calls) if (call.line or 0) <= int(message["line"])), play.cwd
        )
        path = posixpath.normpath(posixpath.join(cwd, match["path"]))
        if not is_folder and path.endswith(_LOGS):
            path, is_folder = posixpath.dirname(path), True
        if path not in play.missing and path not in ("/", play.script):
            found[path] = "folder" if is_folder else "program"
    if not found and recording.status != 0 and not trainings(recording):
        paths = [match["path"] for match in _OF_TOOL.finditer(recording.output)]
        found = {path: "file" for path in paths if path not in play.missing}
    return found


def _refuse_wanting(recording: Recording, shown: str, unset: Sequence[str], given: Sequence[str]) -> None:
    """Name the variable or argument without which the script has stopped."""
    if recording.status in (0, None) or trainings(recording):
        return
    command, end = f"cloudrl import {shown}", f" -- {shlex.join(given)}" if given else ""
    for message in reversed(list(_MESSAGE.finditer(recording.output))):
        match = _UNBOUND.fullmatch(message["text"]) or _REQUIRED.fullmatch(message["text"])
        if match is None or match["name"] in _BUILTINS:
            continue
        name, where = match["name"], f"{posixpath.basename(message['file'])}:{message['line']}"
        why = match.groupdict().get("why")
        said = f": {why}" if why and why not in ("parameter null or not set", "parameter not set") else ""
        if name.isdecimal():
            words = " ".join(f"ARG{number}" for number in range(1, int(name) + 1))
            raise Wanted(f"{where} wants argument {name}{said}", hint=f"{command} -- {words}")
        raise Wanted(f"{where} wants the variable {name}{said}", hint=f"{command} --env {name}=VALUE{end}")
    if "syntax error" in recording.output and not recording.calls:
        raise InputError(recording.output.strip().splitlines()[0], hint=f"bash -n {shown}")
    if not recording.calls or "usage" in recording.output.lower():
        ending = "\n".join(recording.output.strip().splitlines()[-5:])
        arguments = ["-- ARGS"] if not unset or "usage" in recording.output.lower() else []
        raise Wanted(
            f"{shown} ended with status {recording.status} before any training" + (f":\n{ending}" if ending else ""),
            hint=" ".join([command, *(f"--env {name}=VALUE" for name in unset[:3]), *arguments]),
        )


def _where(recording: Recording) -> str:
    last = recording.calls[-1] if recording.calls else None
    return f"; the last call was {last.program} in line {last.line}" if last and last.line else ""


def _unset_in_arguments(
    recording: Recording, play: Play, isolated: bool, play_once: Callable[..., Recording]
) -> dict[str, tuple[str, ...]]:
    """Variables without a value that the arguments of a training hold: seen by a second run that gives them one."""
    first = trainings(recording)
    files = {play.script: play.content, **{path: content for path, (content, _) in play.project.contents.items()}}
    read = {call.file for call in recording.calls} | {play.script}
    text = _COMMENT.sub("", "\n".join(files[path].decode(errors="replace") for path in read if path in files))
    names = [name for name in unset_names(text, play) if name not in first[0].env] if first else []
    if not names:
        return {}
    marks = {name: f"{_MARK}{index}x" for index, name in enumerate(names)}
    marked = play_once(replace(play, env={**play.env, **marks}), isolated=isolated)
    found: dict[str, list[str]] = {}
    for word in _words(trainings(marked)):
        for name, mark in marks.items():
            if mark in word and is_override(word):
                found.setdefault(name, []).append(word.partition("=")[0])
    return {name: tuple(dict.fromkeys(keys)) for name, keys in found.items()}


def _words(calls: Iterable[Call]) -> Iterable[str]:
    return (word for call in calls for word in call.arguments)
