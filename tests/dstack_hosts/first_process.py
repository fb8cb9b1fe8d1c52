"""The first process of a lab's namespaces. When it dies, everything in them dies.

`python first_process.py DISKS GATEWAY`: mounts an own /proc and an own tmpfs for the hosts' disks, makes the bridge
between the hosts, prints "ready" and collects orphans.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path


def main(disks: str, gateway: str) -> None:
    """Set up and wait. An end of the lab is a SIGKILL."""
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", disks)
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "br0", "type", "bridge")
    run("ip", "addr", "add", gateway, "dev", "br0")
    run("ip", "link", "set", "br0", "up")
    # What hosts send elsewhere is refused at once, where a missing route here would let it hang.
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    run("ip", "route", "add", "unreachable", "default")
    signal.signal(signal.SIGCHLD, collect)
    print("ready", flush=True)
    while True:
        signal.pause()


def collect(*_: object) -> None:
    """Collect all children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def run(*words: str) -> None:
    """Run a command of the system."""
    subprocess.run(words, check=True, timeout=30)


main(*sys.argv[1:])
