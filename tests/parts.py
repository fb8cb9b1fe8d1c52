"""The tests in parts that run side by side, since each waits a good deal: `python tests/parts.py [PART ...]`.

Without a name all tests run, the longest part first, three at a time: six take longer, as idle clusters need CPU time,
too. The labs have networks of their own, and as root each other part gets one, so that no test meets the ports of
another part. Otherwise clusters on this machine, which are all in one part, run beside labs alone. The output of the
first part is printed at once, that of the next after it. Where few tests have failed, they run once more with nothing
beside them, and that counts. Last come all tests that have failed, also those that pass alone (such a test has a fault,
or what it tests has one), the time and the CPU time of each part, and how busy the CPUs were. The CPU time of a part is
that of the processes which it has waited for: Ray, the labs and local clusters are not among them. PYTEST_ADDOPTS goes
to each. Ctrl-C and SIGTERM end what runs, and wait for its cleaning up.

`python tests/parts.py durations` writes how long the parts and files of the last run have taken into
`tests/durations.json`. The order of the parts and the halves follow from it. What is missing there counts as short.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

DURATIONS = Path("tests/durations.json")  # of the parts, and of the files of the two halves, in seconds
SHORT_S = 1.0
# Where the tests with a marker are: to collect all tests would take 15 s of CPU time.
FOLDERS = {
    "dstack": ("tests/providers", "tests/dstack_hosts"),
    "slurm": ("tests/providers", "tests/render", "tests/slurm_nodes"),
}
SECOND_LAB = (
    "tests/providers/test_dstack_cloud.py",
    "tests/providers/test_dstack_ready_files.py",
    "tests/dstack_hosts",  # before the next: its runs name no fleet, and may get the hosts of any that there is
    "tests/providers/test_one_definition.py",
)
OTHERS = "not dstack and not slurm"
CLUSTERS = ("tests/e2e", "tests/providers")  # real clusters on this machine
UNIT = " and ".join(f"not {marker}" for marker in ("io", "agents", "verl", "ray", "e2e", "dstack", "slurm"))
HALF = (
    "tests/shards",
    "tests/render",
    "tests/recipes",
    "tests/verl",
    "tests/spec",
    "tests/saves",
)  # of the unit tests, by time


PARTS = {
    "clusters": ("-m", OTHERS, *CLUSTERS),
    "first": ("-m", OTHERS),  # and its half of the files
    "second": ("-m", OTHERS),
    "slurm": ("-m", "slurm", "tests/providers"),
    "lab": ("-m", "dstack", "tests/providers", *(f"--ignore={path}" for path in SECOND_LAB)),
    "second-lab": ("-m", "dstack", *SECOND_LAB),
    "second-slurm": ("-m", "slurm", "tests/render", "tests/slurm_nodes"),
    "unit": ("-m", UNIT, *HALF),
    "second-unit": ("-m", UNIT, *(f"--ignore={path}" for path in ("tests/verl_cpu", *HALF))),
}
HALVES = ("first", "second")
WHOLE = ("clusters", "first", "second", "lab", "second-lab", "slurm", "second-slurm")
"""All tests. The unit tests are in `clusters` and in the halves."""
APART = {"clusters": {"first", "second"}, "first": {"clusters"}, "second": {"clusters"}}
"""Parts that use the ports of this machine: verl chooses a port, and another test may take it before verl does."""
NETWORK = """set -e
ip link set lo up
ip link add own type bridge
ip addr add 192.0.2.2/24 dev own
ip link set own up
ip route add default via 192.0.2.1
exec "$@"
"""
OWN_NETWORK = ("unshare", "--net", "sh", "-c", NETWORK, "sh")
"""As of a machine with one address, from which no other machine can be reached."""
AT_ONCE = 3
CACHE = Path(".pytest_cache")
NO_TESTS = 5  # pytest's status, as with `-k` in PYTEST_ADDOPTS
TESTS_FAILED = 1  # likewise, and not that of a part that did not collect, or was interrupted
LAST_FAILED = "v/cache/lastfailed"  # pytest's own, in its cache
FEW = 5
"""Failed tests of a part that run once more. Where more have failed, they have a common cause."""


def words_of(name: str) -> tuple[str, ...]:
    """What pytest is told for a part."""
    return (*PARTS[name], *(half(HALVES.index(name)) if name in HALVES else ()))


def longest_first(names: Sequence[str]) -> list[str]:
    """Short parts come last, and fill the time until the long ones are over."""
    durations = json.loads(DURATIONS.read_text())["parts"]
    return sorted(names, key=lambda name: -durations.get(name, SHORT_S))


def own_network() -> tuple[str, ...]:
    """What a command is started with to have a network of its own; nothing where that is not possible."""
    try:
        done = subprocess.run([*OWN_NETWORK, "true"], capture_output=True, timeout=60)
    except OSError:
        return ()
    return OWN_NETWORK if done.returncode == 0 else ()


def half(number: int) -> list[str]:
    """One of two lists of files that take equally long, of all that start no cluster on this machine."""
    durations = json.loads(DURATIONS.read_text())["files"]
    files = [str(path) for path in Path("tests").rglob("test_*.py") if not str(path).startswith(CLUSTERS)]
    parts: tuple[list[str], list[str]] = [], []
    seconds = [0.0, 0.0]
    for file in sorted(files, key=lambda file: (-durations.get(file, SHORT_S), file)):
        shorter = seconds.index(min(seconds))
        parts[shorter].append(file)
        seconds[shorter] += durations.get(file, SHORT_S)
    return sorted(parts[number])


@dataclass
class Part:
    """The tests of a part, running. What they say goes to a file."""

    name: str
    output: Path
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    took_s: float = 0.0
    cpu_s: float = 0.0
    is_again: bool = False

    @classmethod
    def start(cls, name: str, network: tuple[str, ...]) -> "Part":
        (CACHE / name / LAST_FAILED).unlink(missing_ok=True)
        return cls._start(name, network, (*words_of(name), f"--junit-xml={CACHE / name}.xml"), CACHE / f"{name}.txt")

    @classmethod
    def start_again(cls, name: str, network: tuple[str, ...], tests: Sequence[str]) -> "Part":
        """Those tests of the part alone."""
        return cls._start(name, network, tests, CACHE / f"{name}-again.txt", is_again=True)

    @classmethod
    def _start(
        cls, name: str, network: tuple[str, ...], words: Sequence[str], output: Path, *, is_again: bool = False
    ) -> "Part":
        pytest = (sys.executable, "-m", "pytest", f"--color={'yes' if sys.stdout.isatty() else 'no'}")
        with output.open("wb") as file:
            command = (*network, *pytest, *words, "-o", f"cache_dir={CACHE / name}")
            process = subprocess.Popen(command, stdout=file, stderr=file)
        return cls(name, output, process, is_again=is_again)

    @property
    def is_over(self) -> bool:
        """Whether it has ended. The first time, its CPU time is that of all its processes that were waited for."""
        if self.process.returncode is None:
            ended, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if ended:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self.took_s = time.monotonic() - self.started
                self.cpu_s = usage.ru_utime + usage.ru_stime
        return self.process.returncode is not None

    def to_repeat(self) -> list[str]:
        """The tests that have failed, if they are few, and the part has run to its end."""
        failed = CACHE / self.name / LAST_FAILED
        if self.process.returncode != TESTS_FAILED or not failed.exists():
            return []
        tests = sorted(json.loads(failed.read_text()))
        return tests if len(tests) <= FEW else []

    def print_from(self, position: int) -> int:
        """Print what its tests have said since this place in the output; the place up to which that is."""
        with self.output.open("rb") as file:
            file.seek(position)
            sys.stdout.buffer.write(file.read())
            sys.stdout.flush()
            return file.tell()

    def verdict(self) -> str:
        """Each test that has failed, and how the part has ended; its tests have."""
        lines = re.sub(r"\x1b\[[0-9;]*m", "", self.output.read_text(errors="replace")).splitlines()
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        last = next((line.strip("= ") for line in reversed(lines) if line.startswith("=")), "no tests")
        took = f"{self.took_s:.0f} s, {self.cpu_s:.0f} s of CPU"
        name = f"{self.name}, failed tests alone" if self.is_again else self.name
        return "\n".join([*failed, f"{name}: status {self.process.returncode}, {took}, {last}"])


class Use:
    """How busy all CPUs of this machine are from now on: where they are, more parts at once would save no time."""

    def __init__(self) -> None:
        self._started, self._before = time.monotonic(), psutil.cpu_times()

    def verdict(self) -> str:
        spent = [after - before for before, after in zip(self._before, psutil.cpu_times(), strict=True)]
        idle = sum(s for name, s in zip(self._before._fields, spent, strict=True) if name in ("idle", "iowait"))
        took_s = time.monotonic() - self._started
        return f"all of it: {took_s:.0f} s, the machine's CPUs were busy {1 - idle / sum(spent):.0%} of the time"


class Run:
    """Parts that run side by side, and then their failed tests one part after the other."""

    def __init__(self, names: Sequence[str]) -> None:
        self._waiting = list(names)
        self._network = own_network()
        self._parts: list[Part] = []
        self._printed = self._position = 0
        self._is_interrupted = False

    def interrupt(self, *_: object) -> None:
        """End what runs, as a handler of signals."""
        self._is_interrupted = True
        self._waiting.clear()
        for part in self._parts:
            if part.process.returncode is None:
                part.process.terminate()

    def main(self) -> int:
        """The exit status: that of the first part that has failed, and whose failed tests did not pass alone."""
        use = Use()
        while self._waiting or self._printed < len(self._parts):
            self._start_next()
            self._print()
            time.sleep(0.2)
        first = list(self._parts)
        again = {part.name: self._repeat(part) for part in first if not self._is_interrupted and part.to_repeat()}
        print("\n" + "\n".join([*(part.verdict() for part in self._parts), use.verdict()]), flush=True)
        statuses = [again.get(part.name, part.process.returncode) for part in first]
        return next((status for status in statuses if status not in (0, NO_TESTS)), 0)

    def _network_of(self, name: str) -> tuple[str, ...]:
        return self._network if name in APART else ()

    def _start_next(self) -> None:
        running = {part.name for part in self._parts if not part.is_over}
        apart = {} if self._network else APART
        name = next((each for each in self._waiting if not running & apart.get(each, set())), None)
        if name is not None and len(running) < AT_ONCE:
            self._waiting.remove(name)
            self._parts.append(Part.start(name, self._network_of(name)))

    def _print(self) -> None:
        if self._printed < len(self._parts):
            part = self._parts[self._printed]
            is_over = part.is_over
            self._position = part.print_from(self._position)
            if is_over:
                self._printed, self._position = self._printed + 1, 0

    def _repeat(self, part: Part) -> int:
        self._parts.append(Part.start_again(part.name, self._network_of(part.name), part.to_repeat()))
        while self._printed < len(self._parts):
            self._print()
            time.sleep(0.2)
        return self._parts[-1].process.returncode


def main(names: list[str]) -> int:
    """The exit status of all these parts."""
    CACHE.mkdir(exist_ok=True)
    run = Run(names or longest_first(WHOLE))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, run.interrupt)
    return run.main()


def record_durations() -> None:
    """Write what each part and each file has taken in the last run of its part."""
    parts = {name: ET.parse(CACHE / f"{name}.xml") for name in sorted(WHOLE)}
    seconds = {name: sum(float(each.attrib["time"]) for each in part.iter("testsuite")) for name, part in parts.items()}
    taken: dict[str, float] = defaultdict(float)
    for name in HALVES:
        for case in parts[name].iter("testcase"):
            words = case.attrib["classname"].split(".")
            taken[f"{'/'.join(word for word in words if not word[0].isupper())}.py"] += float(case.attrib["time"])
    durations = {
        "parts": {name: round(s) for name, s in seconds.items()},
        "files": {file: round(s) for file, s in sorted(taken.items()) if s >= 2},
    }
    DURATIONS.write_text(json.dumps(durations, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["durations"]:
        record_durations()
    else:
        sys.exit(main(sys.argv[1:]))
