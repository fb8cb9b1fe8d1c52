"""`make test`: the tests in the dstack lab run beside all others. `PYTEST_ADDOPTS` goes to both.

The lab has a network of its own, so the two do not meet at a port; and since either waits a good deal, both take less
than one after the other. What the lab's tests say comes when the others have ended: whole if one failed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile

COMMAND = [sys.executable, "-m", "pytest", "-m"]
SUMMARY = b"=== short test summary info ==="


def main() -> int:
    """Run both parts to their end; the exit status is that of pytest, of the others first."""
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches both by itself, and each has to clean up
    with tempfile.TemporaryFile() as said:
        lab = subprocess.Popen([*COMMAND, "dstack"], stdout=said, stderr=subprocess.STDOUT)
        others = subprocess.Popen([*COMMAND, "not dstack"])
        signal.signal(signal.SIGTERM, lambda *_: [part.terminate() for part in (lab, others)])
        status = others.wait()
        print("\nThe tests in the dstack lab, which ran beside these:", flush=True)
        lab_status = lab.wait()
        said.seek(0)
        text = said.read()
    sys.stdout.buffer.write(text if lab_status else SUMMARY + text.partition(SUMMARY)[2])
    print(f"\npytest's exit status in the lab: {lab_status}, of all others: {status}")
    return status or lab_status


if __name__ == "__main__":
    sys.exit(main())
