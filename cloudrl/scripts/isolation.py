"""Runs a program where it can harm nothing, within limits of time, memory and output, and reads what came of it.

`cloudrl.scripts.jail` makes the isolation, and is started here as a child.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudrl.errors import CloudrlError, InputError
from cloudrl.foreign import NOT_AS_EXPECTED, parse_json
from cloudrl.scripts import jail

_START_SECONDS = 30.0
_ANSWER_BYTES = 128 << 20
_LIBRARIES = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/lib32", "/nix/store", "/gnu/store")
LOADER_CACHE = "/etc/ld.so.cache"
"""Where the dynamic loader looks for the libraries; not every system has one."""


class NotIsolated(CloudrlError):
    """This kernel gives no namespaces to this user, so that a program would run with all of the user's rights."""

    exit_code = InputError.exit_code


@dataclass(frozen=True)
class Ended:
    """What came of a program.

    Attributes:
        status: its exit status, negative for a signal; None if it was ended.
        over: `time` or `memory`, at whose limit it was ended; else empty.
        output: the end of what it has written, both streams.
        records: what it, or a stand-in, has written into `jail.RECORDS`, in the order of the files' names.
    """

    status: int | None
    over: str
    output: str
    records: tuple[str, ...]


def run_isolated(request: Mapping[str, Any], seconds: float, memory_bytes: int) -> Ended:
    """Run a program in namespaces of its own.

    Args:
        request: what `jail.py` reads: `argv`, `env`, `cwd`, files, folders and limits.
        seconds: after which it is ended.
        memory_bytes: of all its processes together, above which it is ended.

    Raises:
        NotIsolated: this kernel offers no isolation; the message says why, and the hints what to do.
        CloudrlError: the child that runs it has failed.
    """
    why = "this system is not Linux"
    for way in _ways() if sys.platform == "linux" else ():
        try:
            return run_jail({**request, **way}, seconds, memory_bytes)
        except NotIsolated as error:
            why = error.message
    hint = "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0" if _is_restricted() else None
    raise NotIsolated(why, hint=hint)


def run_jail(request: Mapping[str, Any], seconds: float, memory_bytes: int) -> Ended:
    """Run a program in the one way that the request names; the arguments are those of `run_isolated`.

    Raises:
        NotIsolated: this way of isolation is not offered here.
        CloudrlError: the child that runs it has failed.
    """
    request = {**request, "seconds": seconds, "memory_bytes": memory_bytes}
    command = [sys.executable, "-I", "-S", jail.__file__]
    try:
        done = subprocess.run(
            command, input=json.dumps(request).encode(), capture_output=True, env={}, cwd="/", check=False,
            timeout=seconds + _START_SECONDS, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired as failure:
        raise CloudrlError(f"the sandbox did not end after {seconds:.0f} s") from failure
    reason = done.stderr.decode(errors="replace").strip()[-500:]
    if done.returncode == jail.NOT_ISOLATED:
        raise NotIsolated(reason)
    if done.returncode != 0 or len(done.stdout) > _ANSWER_BYTES:
        raise CloudrlError(f"the sandbox failed: {reason or done.returncode}")
    return read_ended(done.stdout)


def read_ended(answer: bytes) -> Ended:
    """What `jail.py` has written to its standard output.

    Raises:
        CloudrlError: it cannot be read.
    """
    try:
        read = parse_json(answer)
        records = tuple(text_of(record) for record in read["records"])
        return Ended(read["status"], read["over"], text_of(read["output"]), records)
    except NOT_AS_EXPECTED as failure:
        raise CloudrlError("the sandbox gave no answer that can be read") from failure


def system_libraries() -> tuple[tuple[str, ...], dict[str, str]]:
    """Folders of the system's libraries, and those that are links to others, with what they lead to."""
    links = {path: str(Path(path).readlink()) for path in _LIBRARIES if Path(path).is_symlink()}
    return tuple(path for path in _LIBRARIES if Path(path).is_dir() and path not in links), links


def limits_here(limits: Mapping[str, int]) -> dict[str, int]:
    """Limits of `getrlimit(2)` with NPROC as this kernel counts it.

    Before Linux 5.14 all processes of a user count together, those outside a namespace, too (ucount.c).
    """
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if release >= (5, 14) or os.geteuid() == 0 or "NPROC" not in limits:
        return dict(limits)
    return {**limits, "NPROC": limits["NPROC"] + sum(1 for _ in Path("/proc").glob("[0-9]*/task/*"))}


def text_of(latin: str) -> str:
    """Bytes that travel as Latin-1, as the text that they are in UTF-8."""
    return latin.encode("latin-1", "replace").decode("utf-8", "replace")


def latin_of(content: bytes | str) -> str:
    """Bytes, or a text in UTF-8, as they travel to `jail.py`: a character for each byte."""
    return (content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content).decode("latin-1")


def _is_restricted() -> bool:
    """Whether AppArmor gives a user's namespaces no rights, as on Ubuntu since 24.04."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").read_text().strip() == "1"
    return False


def _ways() -> tuple[dict[str, bool], ...]:
    """How isolation can be had, the best first. Nothing runs as root."""
    as_user = {"isolated": True, "with_user": True, "as_nobody": False, "drop": False}
    if os.geteuid() != 0:
        return (as_user,)
    return ({**as_user, "with_user": False, "drop": True}, {**as_user, "as_nobody": True})
