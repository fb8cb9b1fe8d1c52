"""What it costs a node to keep its logs: CPU time of the agent's thread, and bytes on the volume.

    python benchmarks/bench_archive.py [SESSION/logs]

Without a folder it makes the logs of a node with eight GPUs, 400 files. Each round something is added to 24 of them, as
much as workers of verl and vLLM print in 10 s; the agent looks every 10 s. A folder is copied as it is.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cloudrl.node.archiver import EVERY_S
from cloudrl.node.log_copy import LogCopy
from cloudrl.node.masking import Masker

FILES, ACTIVE, ROUNDS, LINES = 400, 24, 20, 60
LINE = (
    "(WorkerDict pid={0}) 2026-11-23 10:00:{1:02},{2:03} INFO step {1} rank {0} loss {2} memory {0}{2} MiB reserved\n"
)
SECRETS = [f"a-secret-of-some-length-{number}" for number in range(20)]


def measured(copy: LogCopy) -> float:
    """CPU seconds of one pass."""
    before = time.thread_time()
    copy.copy(Masker(SECRETS))
    return time.thread_time() - before


def add(folder: Path, lines: int) -> Iterator[int]:
    """Add lines to the active files; the bytes of each."""
    for number in range(ACTIVE):
        text = "".join(LINE.format(number, index % 60, (index * 7919) % 1000) for index in range(lines))
        with (folder / f"worker-{number:056x}-01000000-{number}.out").open("a") as file:
            yield file.write(text)


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    with tempfile.TemporaryDirectory() as text:
        target = Path(text, "archive")
        if len(sys.argv) > 1:
            logs = Path(sys.argv[1])
            seconds = measured(LogCopy(target, {"logs": logs}))
            print(f"{size_bytes(logs):,} bytes of logs -> {size_bytes(target):,} bytes, {seconds:.3f} s of CPU time")
            return
        logs = Path(text, "logs")
        logs.mkdir()
        for number in range(FILES):
            (logs / f"python-core-worker-{number:056x}_{number}.log").write_text("started\n" * 20)
        copy = LogCopy(target, {"logs": logs})
        first = measured(copy)
        idle = [measured(copy) for _ in range(ROUNDS)]
        added, busy = 0, []
        for _ in range(ROUNDS):
            added += sum(add(logs, LINES))
            busy.append(measured(copy))
        for name, each in (("nothing new", idle), (f"{added // ROUNDS:,} new bytes", busy)):
            mean = sum(each) / len(each)
            print(f"{name}: {mean * 1000:.1f} ms every {EVERY_S:.0f} s, {mean / EVERY_S:.3%} of one CPU")
        print(f"first pass over {FILES} files: {first * 1000:.0f} ms")
        print(f"{size_bytes(logs):,} bytes of logs -> {size_bytes(target):,} bytes")


if __name__ == "__main__":
    main()
