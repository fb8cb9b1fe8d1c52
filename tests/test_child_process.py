"""Children die with the agent, and are ended by process id with all that they have started."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from child_processes import until
from node.conftest import nothing_left  # noqa: F401 - a fixture
from patience import SLOWER

from cloudrl.child_process import Child, descendants

pytestmark = pytest.mark.usefixtures("nothing_left")


def _alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    started: list[Child] = []

    def run(command: str, **more: object) -> Child:
        child = Child(["/bin/sh", "-c", command], log=tmp_path / "logs" / "log", env=os.environ, **more)  # type: ignore[arg-type]
        started.append(child)
        return child

    yield run
    for child in started:
        child.end(0.5)


def test_it_logs_to_its_file(start, tmp_path: Path) -> None:
    child = start("echo out; printf 'no text: \\377\\n' >&2; pwd; exit 3", cwd=tmp_path)
    assert child.wait(10 * SLOWER) == 3
    assert child.poll() == 3
    assert child.tail() == f"out\nno text: \ufffd\n{tmp_path}"


def test_the_tail_is_its_own_and_short(start) -> None:
    start("echo of the first child").wait(10 * SLOWER)
    child = start("seq 1 50")
    child.wait(10 * SLOWER)
    assert child.tail(2) == "49\n50"
    assert child.tail(100).splitlines()[0] == "1"
    assert "of the first child" in child.log.read_text()


def test_it_has_no_input_and_its_own_session(start) -> None:
    child = start("cat; ps -o sid= -p $$")
    assert child.wait(10 * SLOWER) == 0
    assert int(child.tail()) == child.pid


def test_waiting_ends_with_the_time_and_ending_twice_does_no_harm(start) -> None:
    child = start("exec sleep 600")
    assert child.wait(0.0) is None
    assert child.poll() is None
    assert child.end() == child.end() == -signal.SIGTERM


def test_the_whole_group_ends(start) -> None:
    child = start("sleep 600 & sleep 600 & echo up; wait")
    until(lambda: "up" in child.tail() and len(descendants(child.pid)) == 2, "two grandchildren")
    inner = descendants(child.pid)
    child.end()
    until(lambda: not any(_alive(pid) for pid in inner), "the grandchildren are gone")


def test_who_does_not_listen_is_killed(start) -> None:
    child = start("trap '' TERM; echo up; while :; do sleep 600; done")
    until(lambda: "up" in child.tail(), "the trap")
    assert child.end(0.2) == -signal.SIGKILL


def test_who_is_not_below_us_is_left_alone(start) -> None:
    """The number of a child that has ended may be that of somebody else's group."""
    child = start("sleep 600 & echo $!")
    assert child.wait(10 * SLOWER) == 0
    elsewhere = int(child.tail())  # its new parent is not ours
    try:
        assert os.getpgid(elsewhere) == child.pid
        assert child.end() == 0
        assert _alive(elsewhere)
    finally:
        os.kill(elsewhere, signal.SIGKILL)


PARENT = """
import os, sys, time
from pathlib import Path
from cloudrl.child_process import Child
child = Child(["sleep", "600"], log=Path(sys.argv[1]), env=os.environ)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_it_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    with parent:
        child = int(parent.stdout.readline())
        assert _alive(child)
        parent.kill()
    until(lambda: not _alive(child), "the child is gone")


def test_descendants() -> None:
    command = "sleep 600 & (sleep 600 & sleep 600; true) & echo up; wait"
    with subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.PIPE, start_new_session=True) as top:
        until(lambda: len(descendants(top.pid)) == 4, "a shell, a subshell and their sleepers")
        assert top.pid not in descendants(top.pid)
        assert descendants(top.pid) < descendants(os.getpid())
        os.killpg(top.pid, signal.SIGKILL)
    until(lambda: not descendants(top.pid), "all gone")


ADOPTING = """
import os, threading, time
from pathlib import Path
from cloudrl.child_process import Child, adopt_orphans, descendants, end_orphans, reap_orphans

def run(command):
    return Child(["/bin/sh", "-c", command], log=Path(LOG), env=os.environ)

adopt_orphans()
"""


@pytest.fixture
def in_adopting(run_python: Callable[[str], str], tmp_path: Path) -> Callable[[str], str]:
    """Run code in a process that adopts orphans, as the agent does; what it printed."""
    return lambda code: run_python(ADOPTING.replace("LOG", repr(str(tmp_path / "log"))) + code).strip()


OUTLIVES = """
child = run("sleep 600 & sleep 600 & exit 3")
assert child.wait(10) == 3
assert len(descendants(os.getpid())) == 2
assert child.end() == 3
while descendants(os.getpid()):
    pass
print("ended")
"""


def test_what_outlives_its_leader_ends_too(in_adopting: Callable[[str], str]) -> None:
    assert in_adopting(OUTLIVES) == "ended"


LEFT = """
lives = run("sleep 600 & wait")
died = run("setsid sh -c 'sleep 600 & wait' & exit 3")
assert died.wait(10) == 3
while len(descendants(os.getpid())) < 4:
    pass
end_orphans()
assert lives.poll() is None
print(len(descendants(os.getpid())))
lives.end()
"""


def test_what_a_dead_child_has_left_ends_and_what_a_living_one_has_does_not(in_adopting: Callable[[str], str]) -> None:
    assert in_adopting(LEFT) == "2"


ZOMBIES = """
def zombies():
    found = 0
    for entry in Path("/proc").iterdir():
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        found += state == "Z" and int(parent) == os.getpid()
    return found

children = [run(f"true & true & exit {status}") for status in range(7)]
while zombies() < 3 * 7:
    time.sleep(0.01)
waiting = run("true & true & exit 42")
got = []
thread = threading.Thread(target=lambda: got.append(waiting.wait(10)))
thread.start()
while zombies() or thread.is_alive():
    reap_orphans()
thread.join()
print([child.poll() for child in children], got, waiting.poll())
"""


def test_orphans_are_collected_and_no_child_loses_its_status(in_adopting: Callable[[str], str]) -> None:
    assert in_adopting(ZOMBIES) == "[0, 1, 2, 3, 4, 5, 6] [42] 42"


def test_a_name_that_was_cut_in_the_middle_of_a_character():
    code = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'gr\\xc3', 0, 0, 0); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.pid in descendants(os.getpid())
        process.kill()
