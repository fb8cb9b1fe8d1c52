"""What `cloudrl --help` costs: CPU seconds, user and system, beside a bare `python -c pass` in the same run.

    make bench-help                        # or: python benchmarks/bench_help.py

Claim: under 0.15 s on an idle machine.
"""

from __future__ import annotations

import os
import sys
from statistics import median

ROUNDS = 9
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "cloudrl --help": (sys.executable, "-m", "cloudrl.cli.main", "--help"),
}


def main() -> None:
    """Measure in turns, after a round that fills the caches, and print all values."""
    values: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(ROUNDS + 1):
        for name, words in COMMANDS.items():
            seconds = cpu_s(*words)
            if number:
                values[name].append(seconds)
    for name, each in values.items():
        print(f"{name}: {' '.join(f'{value:.3f}' for value in each)}")
    bare, ours = (median(each) for each in values.values())
    print(f"median: cloudrl --help {ours:.3f} s of CPU, python -c pass {bare:.3f} s")


def cpu_s(*words: str) -> float:
    """CPU seconds of one run, its output thrown away."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        pid = os.posix_spawn(words[0], words, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)])
    finally:
        os.close(null)
    _, status, usage = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(words)} failed")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
