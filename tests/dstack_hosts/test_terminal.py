"""A job on its terminal, and how dstack stops it. The shell is dash, as in verl's images."""

import os
import signal
import threading
import time

import pytest
from patience import SLOWER

from dstack_hosts.standin.home import job_user
from dstack_hosts.standin.terminal import Terminal, session_pids

pytestmark = pytest.mark.io

USER = job_user({"user": {"uid": os.getuid()}})
# Says that it runs, and how it was ended.
PROGRAM = """exec python3 -uc '
import signal, time
def end(number, frame):
    print("got", signal.Signals(number).name)
    raise SystemExit(7)
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, end)
print("runs")
time.sleep(60)
'"""
DEAF = """python3 -uc '
import signal, time
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("runs")
time.sleep(60)
'"""


class Job:
    """A terminal whose output is collected by a thread."""

    def __init__(self, script, **delays):
        path = os.environ["PATH"]
        command = ["dash", "-i", "-c", script]
        self.terminal = Terminal(command, {"PATH": path, "PS1": ""}, "/", USER, **delays)
        self.output = b""
        self._thread = threading.Thread(target=self.terminal.copy_output, args=(self._write,))
        self._thread.start()

    def _write(self, data):
        self.output += data
        return True

    def wait_for(self, text, times=1):
        """Two that write at once may do so between the other's word and its line end."""
        deadline = time.monotonic() + 60 * SLOWER
        while self.output.count(text) < times:
            if time.monotonic() > deadline:
                for pid in session_pids(self.terminal._process.pid):
                    os.kill(pid, signal.SIGKILL)
                self.end()
                pytest.fail(f"no {times} {text!r} in {self.output!r}")
            time.sleep(0.01)

    def end(self):
        self._thread.join(20 * SLOWER)
        assert not self._thread.is_alive()
        return self.terminal.wait()


def test_the_exit_status_after_a_signal():
    assert Job("kill -9 $$").end() == -1


@pytest.mark.parametrize("script", [PROGRAM, f"true && {PROGRAM.removeprefix('exec ')}"], ids=["exec", "in a shell"])
def test_the_interrupt_reaches_the_program_in_the_foreground(script):
    job = Job(script, hang_up_s=10, kill_s=20)
    job.wait_for(b"runs")
    job.terminal.stop()
    job.wait_for(b"got SIGINT")
    job.end()


def test_a_deaf_job_is_killed_with_all_its_session():
    job = Job(f"{DEAF} & {DEAF}", hang_up_s=0.3, kill_s=0.6)
    job.wait_for(b"runs", times=2)
    job.terminal.stop()
    assert job.end() == -1
    deadline = time.monotonic() + 20 * SLOWER  # what was killed a moment ago may still be there on a busy machine
    while session_pids(job.terminal._process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert session_pids(job.terminal._process.pid) == []


def test_a_job_in_the_background_is_hung_up():
    job = Job(f"{PROGRAM.removeprefix('exec ')} & {PROGRAM}", hang_up_s=0.3, kill_s=20)
    job.wait_for(b"runs", times=2)
    job.terminal.stop()
    job.end()
    assert b"got SIGINT" in job.output
    assert b"got SIGHUP" in job.output


def test_zombies_and_oneself_are_not_of_a_session():
    child = os.fork()
    if child == 0:
        os.setsid()
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    try:
        assert session_pids(child) == []
        assert os.getpid() not in session_pids(os.getsid(0))
    finally:
        os.waitpid(child, 0)
    assert signal.getsignal(signal.SIGCHLD) in (signal.SIG_DFL, None)
