"""What commands that start nothing cost: CPU seconds, user and system, beside `python -c pass` in the same run.

    make bench-help                        # or: python benchmarks/bench_help.py

Claims, on an idle machine: `cloudrl --help` under 0.15 s, `check` of a recipe under 1 s.
"""

from __future__ import annotations

import os
import sys
import tempfile
from statistics import median

ROUNDS = 9
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    **{
        f"cloudrl {line}": (sys.executable, "-m", "cloudrl.cli.main", *line.split())
        for line in ("--help", "check grpo --gpu H100:8", "jobs list")
    },
}
STATUSES = {"cloudrl jobs list": 2}
"""Of commands that end with another exit code than 0: no cluster is up in the home that they get."""


def main() -> None:
    """Measure in turns, after a round that fills the caches, and print all values."""
    values: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"HOME": home, "CLOUDRL_HOME": f"{home}/cloudrl", "XDG_CACHE_HOME": f"{home}/cache"}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(ROUNDS + 1):
            for name, words in COMMANDS.items():
                seconds = cpu_s(*words, status=STATUSES.get(name, 0))
                if number:
                    values[name].append(seconds)
    for name, each in values.items():
        print(f"{name}: median {median(each):.3f} s of CPU; {' '.join(f'{value:.3f}' for value in each)}")


def cpu_s(*words: str, status: int) -> float:
    """CPU seconds of one run, its output thrown away."""
    null = os.open(os.devnull, os.O_WRONLY)
    silent = [(os.POSIX_SPAWN_DUP2, null, stream) for stream in (1, 2)]
    try:
        pid = os.posix_spawn(words[0], words, os.environ, file_actions=silent)
    finally:
        os.close(null)
    _, ended, usage = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(ended) != status:
        sys.exit(f"{' '.join(words)} failed")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
