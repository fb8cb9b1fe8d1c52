"""Runs a script until it comes to its training: with the files, variables and arguments that it wants."""

import functools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cloudrl.errors import InputError
from cloudrl.scripts.programs import is_override, is_training
from cloudrl.scripts.sandbox import HOSTNAME, SECONDS, Call, Play, Recording, run
from cloudrl.scripts.variables import USUALLY_EMPTY
from cloudrl.scripts.wants import MESSAGE, Want, read_want, refusal, refuse_usage

_ROUNDS = 12
_MISSING = re.compile(r"(?P<cd>cd: |pushd: )?(?P<path>[^:\n]+): No such file or directory")
_OF_TOOL = re.compile(
    r"^(?:cp|mv|cat|ls|sed|grep|head|tail|realpath|readlink|stat|wc|awk|jq): (?:\w+ )*?'?(?P<path>/[^':\n]+)'?: "
    r"No such file or directory$",
    re.MULTILINE,
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
_ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)", re.DOTALL)
_MARK = "cloudrlunset"
_GUESS = "1"
"""Stands for a value that only the user knows: a number, a word and the name of a file."""


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


def observe(
    play: Play,
    *,
    isolated: bool = True,
    shown: str,
    wants: Sequence[Want] = (),
    play_once: Callable[..., Recording] = run,
) -> Observed:
    """Run a script as often as it takes to come to its training.

    Args:
        play: The script.
        isolated: As for `cloudrl.scripts.sandbox.run`.
        shown: What messages call it.
        wants: Variables that are known to have no value.
        play_once: Runs it.

    Raises:
        Wanted: It stops without variables or arguments; the message has all of them.
        InputError: It does not end, or needs too much memory.
        NotIsolated: There is no isolation here.
    """
    text = _COMMENT.sub("", play.content.decode(errors="replace"))
    unset = unset_names(text, play)
    head = {name: value for name, value in _HEAD.items() if name in unset}
    empty = dict.fromkeys(USUALLY_EMPTY & {*_used_names(text)}, "")  # `set -u` would end the script
    once = functools.partial(play_once, isolated=isolated)
    play = replace(play, env={**head, **empty, **play.env, **{want.name: _GUESS for want in wants}})
    recording, play = _with_files(play, once)
    if wants or read_want(recording) is not None:
        raise refusal(shown, _all_wants(recording, play, wants, once), play.arguments)
    if recording.status not in (0, None):  # it may ask for a file that only the nodes have
        other = replace(play, present=True)
        if len(trainings(again := once(other))) > len(trainings(recording)):
            play, recording = other, again
    if head.get("MASTER_ADDR") and not trainings(recording):  # it may compare addresses and not names
        other = replace(play, env={**play.env, "MASTER_ADDR": "10.0.0.1"})
        if trainings(again := once(other)):
            play, recording = other, again
    if recording.over and not trainings(recording):
        what = f"did not end within {SECONDS:.0f} s" if recording.over == "time" else "needs too much memory"
        raise InputError(f"{shown} {what}, and started no training before{_where(recording)}")
    refuse_usage(recording, shown, unset_names(text, play))
    return Observed(recording, play, tuple(head), _unset_in_arguments(recording, play, once))


def _with_files(play: Play, once: Callable[[Play], Recording]) -> tuple[Recording, Play]:
    """A run with the files and folders that the script asks for."""
    for _ in range(_ROUNDS):
        recording = once(play)
        missing = _missing(recording, play)
        if not missing:
            break
        play = replace(play, missing={**play.missing, **missing})
    return recording, play


def _all_wants(
    recording: Recording, play: Play, known: Sequence[Want], once: Callable[[Play], Recording]
) -> tuple[Want, ...]:
    """All variables and arguments that a script wants: it is run again with a guess for each, until it trains."""
    wants = list(known)
    for _ in range(_ROUNDS):
        want = read_want(recording)
        if want is None or want.name in {each.name for each in wants}:
            break
        wants.append(want)
        if want.is_argument:
            more = int(want.name) - len(play.arguments)
            play = replace(play, arguments=(*play.arguments, *[_GUESS] * more))
        else:
            play = replace(play, env={**play.env, want.name: _GUESS})
        recording, play = _with_files(play, once)
    others = _unset_in_arguments(recording, play, once)
    name = posixpath.basename(play.script)
    return (*wants, *(Want(each, name, f"{', '.join(keys)} has it") for each, keys in others.items()))


def trainings(recording: Recording) -> list[Call]:
    """The calls that start a training."""
    return [call for call in recording.calls if is_training(call)]


def unset_names(text: str, play: Play) -> list[str]:
    """Variables that a script uses without a default, and that nothing in its text sets."""
    used = dict.fromkeys(_used_names(text))
    used |= dict.fromkeys(_in_arithmetic(text))
    return [name for name in used if not _is_set(name, text) and name not in play.env]


def _used_names(text: str) -> Iterator[str]:
    """Variables with a dollar before them, and no default."""
    return (match["braced"] or match["bare"] for match in _USED.finditer(text))


def _in_arithmetic(text: str) -> list[str]:
    """Variables of `$((TP * 2))`, which need no dollar there."""
    return [name for part in _ARITHMETIC.findall(text) for name in re.findall(r"(?<![\w$])[A-Za-z_]\w*", part)]


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
    for message in MESSAGE.finditer(recording.output):
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


def _where(recording: Recording) -> str:
    last = recording.calls[-1] if recording.calls else None
    return f"; the last call was {last.program} in line {last.line}" if last and last.line else ""


def _unset_in_arguments(
    recording: Recording, play: Play, once: Callable[[Play], Recording]
) -> dict[str, tuple[str, ...]]:
    """Variables without a value that the arguments of a training hold -> keys: seen by runs that give them one."""
    first = trainings(recording)
    files = {play.script: play.content, **{path: content for path, (content, _) in play.project.contents.items()}}
    read = {call.file for call in recording.calls} | {play.script}
    text = _COMMENT.sub("", "\n".join(files[path].decode(errors="replace") for path in read if path in files))
    names = [name for name in unset_names(text, play) if name not in first[0].env] if first else []
    if not names:
        return {}
    marks = {name: f"{_MARK}{index}x" for index, name in enumerate(names)}
    marked = once(replace(play, env={**play.env, **marks}))
    found: dict[str, list[str]] = {}
    for word in _words(trainings(marked)):
        for name, mark in marks.items():
            if mark in word and is_override(word):
                found.setdefault(name, []).append(word.partition("=")[0])
    for name in [each for each in _in_arithmetic(text) if each in marks and each not in found][:_ROUNDS]:
        counted = set(_words(trainings(once(replace(play, env={**play.env, name: "7"})))))
        changed = sorted(word for word in counted - set(_words(first)) if is_override(word))
        found |= {name: [word.partition("=")[0] for word in changed]} if changed else {}
    return {name: tuple(dict.fromkeys(keys)) for name, keys in found.items()}


def _words(calls: Iterable[Call]) -> Iterable[str]:
    return (word for call in calls for word in call.arguments)
