"""The tests in parts that run side by side, since each waits a good deal: `python tests/parts.py [PART ...]`.

Those on a real Slurm are not among the parts that run where none is named: `make test-slurm`.

The labs have networks of their own. What the first part says is seen at once, that of the others after it; each test
that has failed comes last. PYTEST_ADDOPTS goes to each. Ctrl-C and SIGTERM end all of them, and each is waited for
while it cleans up.
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
    "tests/providers/test_dstack_messages.py",
)
PARTS = {
    "others": ("-m", "not dstack and not slurm"),
    "lab": ("-m", "dstack", "tests/providers", *(f"--ignore={path}" for path in SECOND_LAB)),
    "second-lab": ("-m", "dstack", *SECOND_LAB),
    "slurm": ("-m", "slurm", *FOLDERS["slurm"]),
}
KIND = {"others": ("nice", "-n", "5")}  # in the labs a server has an eye on the clock
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
            process = subprocess.Popen([*KIND.get(name, ()), *words], stdout=file, stderr=file)
        return cls(name, output, process)

    def show(self) -> None:
        """Print what the tests say, until they have ended."""
        with self.output.open("rb") as file:
            ended = False
            while not ended:
                ended = self.process.poll() is not None
                sys.stdout.buffer.write(file.read())
                sys.stdout.flush()
                time.sleep(0 if ended else 0.2)

    def verdict(self) -> str:
        """Each test that has failed, and how the part has ended; its tests have."""
        lines = re.sub(r"\x1b\[[0-9;]*m", "", self.output.read_text(errors="replace")).splitlines()
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        last = next((line.strip("= ") for line in reversed(lines) if line.startswith("=")), "no tests")
        return "\n".join([*failed, f"{self.name}: status {self.process.returncode}, {last}"])


def main(names: list[str]) -> int:
    """The exit status: that of the first part that has failed."""
    CACHE.mkdir(exist_ok=True)
    parts: list[Part] = []

    def end(*_: object) -> None:
        for part in parts:
            part.process.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    parts.extend(Part.start(name) for name in names)
    for part in parts:
        print(f"\nPart {part.name!r}:", flush=True)
        part.show()
    print("\n" + "\n".join(part.verdict() for part in parts), flush=True)
    return next((part.process.returncode for part in parts if part.process.returncode not in (0, NO_TESTS)), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["others", "lab", "second-lab"]))
