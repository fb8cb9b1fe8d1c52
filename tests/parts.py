"""The tests in parts that run side by side, since each waits a good deal: `python tests/parts.py [PART ...]`.

Without a name all tests run, as `WHOLE` says; two parts at a time. The labs have networks of their own. What the first
part says is seen at once, that of the next after it; each test that has failed comes last. PYTEST_ADDOPTS goes to each.
Ctrl-C and SIGTERM end what runs, and it is waited for while it cleans up.
"""

import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# Where the tests with a marker lie: to collect all tests would take 15 s of CPU time.
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
    "others": ("-m", "not dstack and not slurm"),
    "slurm": ("-m", "slurm", "tests/providers"),
    "lab": ("-m", "dstack", "tests/providers", *(f"--ignore={path}" for path in SECOND_LAB)),
    "second-lab": ("-m", "dstack", *SECOND_LAB),
    "second-slurm": ("-m", "slurm", "tests/render", "tests/slurm_nodes"),
    "unit": ("-m", UNIT, *HALF),
    "second-unit": ("-m", UNIT, *(f"--ignore={path}" for path in ("tests/verl_cpu", *HALF))),
}
WHOLE = ("others", "slurm", "lab", "second-lab", "second-slurm")  # `others` has the unit tests
AT_ONCE = 2
CACHE = Path(".pytest_cache")
NO_TESTS = 5  # pytest's status, as with `-k` in PYTEST_ADDOPTS


@dataclass(frozen=True)
class Part:
    """The tests of a part, running. What they say goes to a file."""

    name: str
    output: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, name: str) -> "Part":
        output = CACHE / f"{name}.txt"
        color = "yes" if sys.stdout.isatty() else "no"
        words = (sys.executable, "-m", "pytest", f"--color={color}", *PARTS[name], "-o", f"cache_dir={CACHE / name}")
        with output.open("wb") as file:
            process = subprocess.Popen(words, stdout=file, stderr=file)
        return cls(name, output, process)

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

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
        return "\n".join([*failed, f"{self.name}: status {self.process.returncode}, {last}"])


def main(names: list[str]) -> int:
    """The exit status: that of the first part that has failed."""
    CACHE.mkdir(exist_ok=True)
    waiting = list(names or WHOLE)
    parts: list[Part] = []
    printed = position = 0

    def end(*_: object) -> None:
        waiting.clear()
        for part in parts:
            part.process.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    while waiting or printed < len(parts):
        if waiting and sum(not part.is_over for part in parts) < AT_ONCE:
            parts.append(Part.start(waiting.pop(0)))
        if printed < len(parts):
            is_over = parts[printed].is_over
            position = parts[printed].print_from(position)
            if is_over:
                printed, position = printed + 1, 0
        time.sleep(0.2)
    print("\n" + "\n".join(part.verdict() for part in parts), flush=True)
    statuses = [part.process.returncode for part in parts]
    return next((status for status in statuses if status not in (0, NO_TESTS)), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
