"""`make test`: the tests in the dstack lab run beside all others.

The lab has a network of its own, so the two do not meet at a port; and since either waits a good deal, both take less
than one after the other. What the lab's tests say comes when the others have ended: whole if one failed.
`PYTEST_ADDOPTS` goes to both: no option that names a file or folder to write, nor a debugger, which the lab cannot
show.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile

import pytest

COMMAND = [sys.executable, "-m", "pytest", "-m"]
OF_ITS_OWN = ["-o", "cache_dir=.pytest_cache/dstack"]  # which tests failed last, for `pytest --lf`
SUMMARY = b"=== short test summary info ==="
GOOD = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def main() -> int:
    """Run both parts to their end; the exit status is pytest's own."""
    parts: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches both by itself, and each has to clean up
    signal.signal(signal.SIGTERM, lambda *_: [part.terminate() for part in parts])
    with tempfile.TemporaryFile() as said:
        lab = subprocess.Popen(
            [*COMMAND, "dstack", *OF_ITS_OWN],
            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
        parts.append(lab)
        others = subprocess.Popen([*COMMAND, "not dstack"])
        parts.append(others)
        status = others.wait()
        print("\nThe tests in the dstack lab, which ran beside these:", flush=True)
        lab_status = lab.wait()
        said.seek(0)
        text = said.read()
    _, title, summary = text.partition(SUMMARY)
    sys.stdout.buffer.write(text if lab_status or not title else title + summary)
    print(f"\npytest's exit status in the lab: {lab_status}, of all others: {status}")
    failed = [each for each in (status, lab_status) if each not in GOOD]
    return failed[0] if failed else min(status, lab_status)


if __name__ == "__main__":
    sys.exit(main())
