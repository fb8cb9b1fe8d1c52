"""What it costs a training that the agent sums the shards of a finished save: steps with and without it, in turns.

    make bench-saves                       # or: python benchmarks/bench_saves.py [--rounds N] [--seconds S]

One process per processor trains a small transformer in float32 without a pause, so that every processor is busy: the
worst case. A node with GPUs has processors to spare. In every other turn the agent's own child (`cloudrl-node.pyz
shards`) sums a file of 2 GB again and again at the pace of a save. The last line is the summary.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from cloudrl.node.process import Child
from cloudrl.node.shard_worker_client import ShardWorkerClient

ROUNDS, SECONDS = 25, 4.0
FILE_BYTES, PART_BYTES, PIECE_BYTES = 2 << 30, 20 << 20, 1 << 20
TRAIN = """
import sys, torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(8, 64, 256)
while True:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    sys.stdout.write(".")
    sys.stdout.flush()
"""


@dataclass
class Training:
    """A process that trains, and how many steps it has made."""

    process: subprocess.Popen[bytes]
    steps: int = 0

    @classmethod
    def start(cls, folder: str) -> Training:
        """Start it; a thread counts its steps. Temporary files, of which torch leaves some, go into the folder."""
        env = {**os.environ, "TMPDIR": folder}
        training = cls(subprocess.Popen([sys.executable, "-c", TRAIN], stdout=subprocess.PIPE, env=env))
        threading.Thread(target=training._count, daemon=True).start()
        return training

    def _count(self) -> None:
        assert self.process.stdout is not None
        while said := os.read(self.process.stdout.fileno(), 4096):
            self.steps += len(said)


def main() -> None:
    """Measure in turns and print all values."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cbench-") as folder:
        trainings = [Training.start(folder) for _ in range(os.cpu_count() or 1)]
        try:
            measure(Path(folder), trainings, args.rounds, args.seconds)
        finally:
            for training in trainings:
                training.process.kill()
                training.process.wait()


def measure(folder: Path, trainings: list[Training], rounds: int, seconds: float) -> None:
    """Print the steps a second without and with the child at work, and the summary."""
    shard = folder / "model_world_size_1_rank_0.pt"
    write(shard)

    def start(descriptor: int) -> Child:
        command = [sys.executable, "-m", "cloudrl.node", "shards", f"--fd={descriptor}"]
        log = folder / "shards.log"
        return Child(command, log=log, env=dict(os.environ), pass_fds=(descriptor,), bound=False)

    child = ShardWorkerClient(start)
    while not all(training.steps > 20 for training in trainings):
        if any(training.process.poll() is not None for training in trainings):
            sys.exit("a training has ended by itself")
        time.sleep(0.1)
    without, beside = [], []
    for number in range(rounds):
        without.append(steps_per_s(trainings, seconds))
        with Summing(child, shard):
            beside.append(steps_per_s(trainings, seconds))
        print(
            f"  round {number + 1}: {without[-1]:.1f} steps a second, {beside[-1]:.1f} beside a sum",
            flush=True,
        )
    child.close()
    ratios = sorted(one / other for one, other in zip(beside, without, strict=True))
    print(
        f"{len(trainings)} processors, all busy: {median(without):.1f} steps a second, {median(beside):.1f} beside a "
        f"sum: {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    )


class Summing:
    """Has the child sum the file, again and again, while the block lasts."""

    def __init__(self, child: ShardWorkerClient, shard: Path) -> None:
        self._child, self._shard = child, shard
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._sum)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _sum(self) -> None:
        """In parts of less than a second, so that it ends with the block."""
        offset = 0
        try:
            with self._shard.open("rb") as file:
                while not self._over.is_set():
                    self._child.crc32(file, offset=offset, count=PART_BYTES, slowly=True)
                    offset = (offset + PART_BYTES) % (FILE_BYTES - PART_BYTES)
        except Exception as failure:  # noqa: BLE001  raised where it is waited for
            self._failure = failure


def steps_per_s(trainings: list[Training], seconds: float) -> float:
    """All steps of all of them in this time."""
    before, start = sum(training.steps for training in trainings), time.monotonic()
    time.sleep(seconds)
    return (sum(training.steps for training in trainings) - before) / (time.monotonic() - start)


def write(path: Path) -> None:
    """A file of random bytes, on the disk."""
    piece = os.urandom(PIECE_BYTES)
    with path.open("wb") as file:
        for _ in range(FILE_BYTES // PIECE_BYTES):
            file.write(piece)
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
