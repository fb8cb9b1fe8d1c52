"""Outlives whoever started a lab, and takes the lab away when that one is gone.

`python guardian.py FOLDER GATEWAY STARTER`: starts the first process and prints its number. The lab ends, and with it
the folder, when standard input ends (a pipe whose other end only the starter holds), on SIGTERM, or when the first
process dies. STARTER is the one process that is spared in the lab's network; "-" for none, and then standard input
says nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # a script, not a module: it must not import the package

import cgroups
import namespaces

_PR_SET_PDEATHSIG = 1
_END_S = 10.0


def main(folder: Path, gateway: str, starter: str) -> None:
    """Guard one lab from its first process to the last of its folder."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starter's to act on
    network = ""
    outside = _start(folder, gateway)
    try:
        assert outside.stdout is not None
        if outside.stdout.readline() != b"ready\n":
            raise ChildProcessError("the lab's first process has ended, see lab.log")
        first = namespaces.inside(outside)
        network = namespaces.network_id(first)
        (folder / "lab.pid").write_text(f"{os.getpid()} {first}\n")
        print(first, flush=True)
        watched = [outside.stdout] if starter == "-" else [outside.stdout, sys.stdin.buffer]
        select.select(watched, [], [])  # end of file on either
    finally:
        outside.kill()
        outside.wait()
        _end_members(network, starter)
        try:
            cgroups.remove(cgroups.name_for(folder))
        finally:
            _remove(folder)


def _start(folder: Path, gateway: str) -> subprocess.Popen[bytes]:
    disks = folder / "disks"
    disks.mkdir()
    script = str(Path(__file__).with_name("first_process.py"))
    with (folder / "lab.log").open("ab") as log:
        return subprocess.Popen(
            [*namespaces.unshare("net", "mount", "pid"), sys.executable, "-IS", script, str(disks), gateway],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - there are no threads
        )  # fmt: skip


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _leave(_signal: int, _frame: object) -> None:
    raise SystemExit(0)


def _end_members(network: str, starter: str) -> None:
    """Kill what entered the network from outside; the rest died with the first process."""
    deadline = time.monotonic() + _END_S
    while network and time.monotonic() < deadline:
        left = [pid for pid in namespaces.members(network) if str(pid) != starter]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _remove(folder: Path) -> None:
    """Remove the folder; a process that was just killed may still be writing."""
    deadline = time.monotonic() + _END_S
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


main(Path(sys.argv[1]), *sys.argv[2:])
