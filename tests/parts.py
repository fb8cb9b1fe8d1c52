"""The tests in parts that run side by side, since each waits a good deal: `python tests/parts.py [PART ...]`.

Those on a real Slurm are not among the parts that run where none is named: `make test-slurm`.

The labs have networks of their own. What the first part says is seen at once, that of the others when all have ended.
PYTEST_ADDOPTS goes to each. Ctrl-C and SIGTERM end all of them, and each is waited for while it cleans up.
"""

import signal
import subprocess
import sys
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


def start(part: str, output: Path | None) -> subprocess.Popen[bytes]:
    """Start the tests of a part; what they say goes to a file, or to this terminal."""
    cache = CACHE / part if output else CACHE
    words = [*KIND.get(part, ()), sys.executable, "-m", "pytest", *PARTS[part], "-o", f"cache_dir={cache}"]
    if output is None:
        return subprocess.Popen(words)
    with output.open("wb") as file:
        return subprocess.Popen(words, stdout=file, stderr=file)


def main(parts: list[str]) -> int:
    """The exit status: that of the first part that has failed."""
    CACHE.mkdir(exist_ok=True)
    outputs = {part: CACHE / f"{part}.txt" for part in parts[1:]}
    running: list[subprocess.Popen[bytes]] = []

    def end(*_: object) -> None:
        for process in running:
            process.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    running.extend(start(part, outputs.get(part)) for part in parts)
    statuses = [process.wait() for process in running]
    for part, output in outputs.items():
        print(f"\nPart {part!r}, which ran beside {parts[0]!r}:\n{output.read_text(errors='replace')}", flush=True)
    return next((status for status in statuses if status not in (0, NO_TESTS)), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["others", "lab", "second-lab"]))
