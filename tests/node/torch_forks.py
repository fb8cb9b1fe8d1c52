"""Imports torch once, then forks a child of a node's check for each line: which namespace it is in, and its folder.

A stand-in for `cloudrl-node.pyz imports torch`, which takes seconds of CPU time for each node. A line is
{"pid": of a process in the namespace, "folder": of the check}; the answer is the process id of the child.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

import torch  # noqa: F401 - it is what the forks share

from cloudrl.node.compute_process import fork_all

_NETWORK = 0x40000000  # CLONE_NEWNET


def child(pid: int, folder: Path) -> None:
    with open(f"/proc/{pid}/ns/net") as network:
        if ctypes.CDLL(None).setns(network.fileno(), _NETWORK):
            raise OSError(f"the namespace of process {pid} cannot be entered")
    os.setpgid(0, 0)
    fork_all(folder)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                child(asked["pid"], Path(asked["folder"]))
            finally:
                os._exit(0)
        print(pid, flush=True)


main()
