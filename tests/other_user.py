"""Commands of another user of this machine. Only root can run them."""

import subprocess
from pathlib import Path

from patience import SLOWER

UID = 54_321
"""A user id that nothing else has; it needs no name."""


def run(script: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script as the other user; its arguments are `words`."""
    return subprocess.run(
        ["/bin/sh", "-c", script, "sh", *map(str, words)], user=UID, group=UID, extra_groups=[], umask=0,
        cwd="/", env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=30 * SLOWER,
    )  # fmt: skip
