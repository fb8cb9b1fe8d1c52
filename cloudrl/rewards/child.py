"""Starts the child that calls a reward function, in the sandbox.

The function sees what it has on a node: its file, the working directory that is sent along, and the packages of this
Python. It sees no other file of this machine, no network and no secret.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cloudrl.protocol.secret_names import MASK, is_secret
from cloudrl.rewards import runner
from cloudrl.rewards.rows import Answer, Row
from cloudrl.rewards.trial import Trial, read_trial
from cloudrl.scripts import jail
from cloudrl.scripts.isolation import (
    LOADER_CACHE,
    Ended,
    latin_of,
    limits_here,
    run_isolated,
    run_jail,
    system_libraries,
)
from cloudrl.scripts.syscalls import script_filter
from cloudrl.verl.reward_calls import REMOTE, RewardCall

SECONDS = 30.0
"""After which the child is ended."""
CALLS_SHARE = 0.4
"""Of the time: after it no other call begins, so that each call has the rest."""
_STACKS_BEFORE_S = 1.5
MEMORY_BYTES = 2 << 30
"""Of all processes of the child together, above which they are ended."""
_LIMITS = {
    "NPROC": 256,
    "NOFILE": 1024,
    "FSIZE": 16 << 20,
    "AS": 4 * MEMORY_BYTES,
    "CORE": 0,
    "CPU": int(SECONDS),
    "MSGQUEUE": 0,
}
"""For each process (getrlimit(2)); NPROC for all of them together. AS counts what is mapped and not used, too."""
_FILES_BYTES, _FILES = 96 << 20, 10_000
_SENT_BYTES = 16 << 20
"""So much of the working directory is copied for the child, Python files first."""
_JOB, _BESIDE = "/job", "/job/cloudrl_files/reward"
"""In the child's file system: the folder in which the job starts, and where a file from elsewhere is."""
_HOME = "/root"


@dataclass(frozen=True)
class Candidate:
    """A reward function, and what its file needs to be loaded.

    Attributes:
        source: of the file.
        name: of the file.
        call: how verl calls the function.
        path: of the file on this machine.
        beside: files of the working directory that is sent, by their paths below it.
        left_out: those that are not copied for the child, as they are too large.
        inside: the file's own path below the working directory; None if it is not in there.
        working_dir: the working directory; None without one.
        variables: of the job's environment, secrets among them.
    """

    source: bytes = field(repr=False)
    name: str
    call: RewardCall
    path: Path
    beside: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    left_out: frozenset[str] = frozenset()
    inside: str | None = None
    working_dir: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)


def try_function(
    candidate: Candidate,
    rows: Sequence[Row],
    answers: Sequence[Answer],
    *,
    isolated: bool = True,
    seconds: float = SECONDS,
) -> Trial:
    """Load the file, and have the function score answers.

    Args:
        candidate: the function.
        rows: of the data set.
        answers: to them, in this order; after a part of the time no other call begins.
        isolated: refuse where the kernel gives no isolation; False runs it with the user's rights and network, bounded
            in time and memory only.
        seconds: after which it is ended.

    Raises:
        NotIsolated: this kernel offers no isolation.
        CloudrlError: the child that runs it has failed.
    """
    asked = _asked(candidate, rows, answers, seconds)
    if isolated:
        file = f"{_JOB}/{candidate.inside}" if candidate.inside else f"{_BESIDE}/{candidate.name}"
        ended = _isolated(json.dumps(_request(candidate, asked, file)), seconds)
    else:
        file = str(candidate.path)
        with tempfile.TemporaryDirectory(prefix="cloudrl-reward-") as folder:
            ended = run_jail(_alone(candidate, asked, Path(folder)), seconds, MEMORY_BYTES)
    trial = read_trial(ended, rows, answers, file)
    return replace(trial, left_out=candidate.left_out, lacks_fields=candidate.call.adds_fields)


@functools.lru_cache(maxsize=4)
def _isolated(request: str, seconds: float) -> Ended:
    """A command plans a job several times, and the same function is called once."""
    return run_isolated(json.loads(request), seconds, MEMORY_BYTES)


def _asked(candidate: Candidate, rows: Sequence[Row], answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    """What the runner reads, but for paths."""
    call = candidate.call
    return {
        "function": call.function, "passed": call.passed, "keywords": dict(call.keywords), "added": dict(call.added),
        "is_batch": call.is_batch, "in_main_thread": call.manager == REMOTE, "rows": [row.to_json() for row in rows],
        "calls": [{"row": answer.row, "answer": answer.text} for answer in answers],
        "calls_seconds": seconds * CALLS_SHARE, "stacks_after_seconds": max(seconds - _STACKS_BEFORE_S, seconds / 2),
    }  # fmt: skip


def python_paths() -> tuple[str, ...]:
    """Where this Python finds modules, but for the current folder."""
    return tuple(path for path in sys.path if path and Path(path).exists() and Path(path) != Path.cwd())


def _request(candidate: Candidate, asked: Mapping[str, Any], file: str) -> dict[str, Any]:
    python, paths = str(Path(sys.executable).resolve()), python_paths()
    libraries, links = system_libraries()
    folders = _outermost([*libraries, *filter(os.path.isdir, paths), *_of_python()])
    tools = {path: path for path in (python, LOADER_CACHE) if Path(path).exists() and not _is_below(path, folders)}
    own = f"{jail.OWN}/reward.py"
    asked_file = f"{jail.OWN}/request.json"
    whole = {**asked, "file": file, "records": jail.RECORDS, "sys_path": _sys_path(candidate, _JOB, paths)}
    contents = [
        [own, latin_of(Path(runner.__file__).read_bytes()), 0o644],
        [asked_file, latin_of(json.dumps(whole)), 0o644],
        ["/etc/passwd", f"root:x:0:0:root:{_HOME}:/bin/sh\n", 0o644],
        *([f"{_JOB}/{name}", latin_of(content), 0o644] for name, content in candidate.beside.items()),
    ]
    if not candidate.inside:
        contents.append([file, latin_of(candidate.source), 0o644])
    return {
        "tools": tools, "libraries": folders, "links": links, "contents": contents, "folders": [_HOME, _JOB],
        "hostname": "node-0", "cwd": _JOB, "files": _FILES, "files_bytes": _FILES_BYTES, "limits": limits_here(_LIMITS),
        "system_calls": script_filter(),
        "argv": [python, "-I", "-S", "-B", own, asked_file], "env": _environment(candidate, _HOME),
    }  # fmt: skip


def _alone(candidate: Candidate, asked: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The same with the user's rights, in the user's own folders."""
    records, asked_file = folder / "records", folder / "request.json"
    records.mkdir()
    cwd = str(candidate.working_dir or folder)
    paths = _sys_path(candidate, cwd, python_paths())
    whole = {**asked, "file": str(candidate.path), "records": str(records), "sys_path": paths}
    asked_file.write_text(json.dumps(whole), encoding="utf-8")
    limits = {name: value for name, value in _LIMITS.items() if name in ("AS", "CORE", "CPU", "FSIZE")}
    return {
        "isolated": False, "limits": limits, "cwd": cwd, "records": str(records), "output": str(folder / "output"),
        "argv": [str(Path(sys.executable).resolve()), "-I", "-S", "-B", runner.__file__, str(asked_file)],
        "env": _environment(candidate, str(Path.home())),
    }  # fmt: skip


def _sys_path(candidate: Candidate, cwd: str, paths: Sequence[str]) -> list[str]:
    """On a node the working directory is on it; the folder of the file is not."""
    return [*([cwd] if candidate.working_dir is not None else []), *paths]


def _of_python() -> Iterator[str]:
    """The folders that this Python starts from: its own, if it is not a part of the system's."""
    if sys.base_prefix not in ("/", "/usr", "/usr/local"):
        yield sys.base_prefix
    elif Path(sys.base_prefix, "lib").is_dir():
        yield str(Path(sys.base_prefix, "lib"))


def _outermost(folders: Sequence[str]) -> list[str]:
    """Each that is not below another one; what is bound holds what is in it."""
    kept: list[str] = []
    for folder in sorted(map(os.path.realpath, folders)):
        if not _is_below(folder, kept):
            kept.append(folder)
    as_named = [folder for folder in folders if os.path.realpath(folder) != folder and not _is_below(folder, kept)]
    return list(dict.fromkeys([*kept, *as_named]))


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _environment(candidate: Candidate, home: str) -> dict[str, str]:
    """The variables of the job, with `***` for its secrets, and none of this shell's."""
    given = {
        name: MASK if is_secret(name) else value
        for name, value in candidate.variables.items()
        if not name.startswith(("LD_", "PYTHON"))
    }
    ours = {"PATH": "/usr/bin:/bin", "HOME": home, "USER": "root", "LOGNAME": "root", "LANG": "C.UTF-8"}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**ours, **threads, "TOKENIZERS_PARALLELISM": "false", **given}


def files_beside(entries: Sequence[tuple[str, Path, int]]) -> dict[str, bytes]:
    """The files of a working directory that are copied for the child.

    Args:
        entries: path below the folder, path here, and size in bytes of each file.
    """
    copied: dict[str, bytes] = {}
    left_bytes = _SENT_BYTES
    for name, path, size_bytes in sorted(entries, key=lambda entry: (not entry[0].endswith(".py"), entry[2])):
        if size_bytes <= left_bytes and path.is_file():
            try:
                copied[name] = path.read_bytes()
            except OSError:
                continue
            left_bytes -= len(copied[name])
    return copied
