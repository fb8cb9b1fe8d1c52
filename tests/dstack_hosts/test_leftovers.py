"""Nothing of a lab stays, however its starter ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from patience import SLOWER

from dstack_hosts import namespaces
from dstack_hosts.guarded import end
from dstack_hosts.requirements import why_not
from dstack_hosts.runs import until

pytestmark = [pytest.mark.dstack, pytest.mark.root]

# Starts a lab, leaves a daemon in it, and waits for its own end.
STARTER = """
import signal, sys
from pathlib import Path
from dstack_hosts import Lab
lab = Lab(1, Path(sys.argv[1]), guarded=sys.argv[2] == "guarded")
lab.start()
lab.run("setsid", "--fork", "sleep", "600")
print(lab.first_process, flush=True)
if sys.argv[2] == "guarded":
    signal.pause()
"""


def _start(folder, how):
    tests = str(Path(__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", STARTER, str(folder), how],
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": tests},
    )  # fmt: skip


def _first_line(process):
    line = process.stdout.readline()
    assert line, "the starter has failed"
    return int(line)


@pytest.fixture
def folder():
    reason = why_not()
    if reason:
        pytest.skip(reason)
    return Path(tempfile.mkdtemp(prefix="dstack-left-", dir="/tmp"))


def _mentions(folder):
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in _read(path)]


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _nothing_is_left(network, folder):
    return not folder.exists() and not namespaces.members(network) and not _mentions(folder)


def test_a_starter_that_is_killed_leaves_nothing(folder):
    starter = _start(folder, "guarded")
    try:
        network = namespaces.network_id(_first_line(starter))
        assert len(namespaces.members(network)) >= 3  # the first process, the server, the daemon
        mounts = Path("/proc/self/mounts").read_text()
        assert str(folder) not in mounts
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait(10 * SLOWER)
        starter.stdout.close()
    until(lambda: _nothing_is_left(network, folder), 30, lambda: str(namespaces.members(network)))


def test_a_lab_by_hand_goes_on_without_its_starter_until_it_is_ended(folder):
    starter = _start(folder, "by hand")
    network = namespaces.network_id(_first_line(starter))
    assert starter.wait(60 * SLOWER) == 0
    starter.stdout.close()
    assert len(namespaces.members(network)) >= 3
    end(folder)
    until(lambda: _nothing_is_left(network, folder), 30, lambda: str(namespaces.members(network)))


def test_a_guardian_that_is_killed_takes_all_processes_with_it(folder):
    starter = _start(folder, "guarded")
    try:
        network = namespaces.network_id(_first_line(starter))
        os.kill(int((folder / "lab.pid").read_text().split()[0]), signal.SIGKILL)
        until(lambda: not namespaces.members(network), 30, lambda: str(namespaces.members(network)))
    finally:
        starter.kill()
        starter.wait(10 * SLOWER)
        starter.stdout.close()
        subprocess.run(["rm", "-rf", str(folder)], check=True, timeout=30)
