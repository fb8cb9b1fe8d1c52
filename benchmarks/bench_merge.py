"""Merging shards into a Hugging Face model: cloudrl against verl's own merger, and against a mere copy.

    make bench-merge                       # or: python benchmarks/bench_merge.py [--model 3B] [--ranks 16] [--quick]

The sides take turns on the same shards in the same run, five rounds with the shards out of the page cache and five
with them in it. Each is one command in a new Python:

- cloudrl: the step as it lies in its folder, with every check on;
- verl: `python -m verl.model_merger merge --backend fsdp`;
- copy: reads all shards in pieces of 1 MiB, writes as many bytes as the merged model has, and checks and rounds
  nothing: the floor.

None waits for the disk to have what was written; each begins when what the one before wrote is there.

Wall time, processor time of the process and its children, and peak resident memory, as the kernel counts them. verl
needs a tokenizer, so the folder gets that of the tiny model. In the first round the tensors of both are compared byte
by byte.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from write_shards import MODELS

HERE = Path(__file__).parent
TIMEOUT_S = 1800
PIECE_BYTES = 1 << 20
ACTOR = "run/global_step_1/actor"
OURS = """
import sys
from pathlib import Path
from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
Checkpoints(LocalSource(Path(sys.argv[1]).parent)).select(1).merge(sys.argv[2])
"""
VERL = """
import runpy, sys
sys.argv = ["merger", "merge", "--backend", "fsdp", "--local_dir", sys.argv[1], "--target_dir", sys.argv[2]]
runpy.run_module("verl.model_merger", run_name="__main__")
"""
COPY = """
import os, sys
from pathlib import Path
shards = sorted(Path(sys.argv[1]).glob("model_*.pt"))
wanted, size = int(sys.argv[3]), sum(path.stat().st_size for path in shards)
Path(sys.argv[2]).mkdir()
piece = bytearray(1 << 20)
view = memoryview(piece)
read = written = 0
with open(Path(sys.argv[2]) / "copy", "wb", buffering=0) as target:
    for path in shards:
        with open(path, "rb", buffering=0) as source:
            while count := source.readinto(piece):
                read += count
                due = min(count, wanted * read // size - written)
                target.write(view[:due])
                written += due
"""
COMPARE = """
import sys
from pathlib import Path
from safetensors import safe_open
one, other = {}, {}
for folder, found in zip(sys.argv[1:], (one, other)):
    for path in Path(folder).glob("*.safetensors"):
        file = safe_open(path, framework="pt")
        found |= dict.fromkeys(file.keys(), file)
assert one.keys() == other.keys(), sorted(one.keys() ^ other.keys())
for name in one:
    assert one[name].get_tensor(name).equal(other[name].get_tensor(name)), name
print(f"  all {len(one)} tensors are those of verl's merger, bit for bit")
"""


@dataclass(frozen=True)
class Run:
    """What one command took."""

    wall_s: float
    cpu_s: float
    peak_mb: float

    def __str__(self) -> str:
        return f"{self.wall_s:6.2f} s, {self.cpu_s:6.2f} s of CPU, {self.peak_mb:6.0f} MB"


def main() -> int:
    args = _arguments()
    with tempfile.TemporaryDirectory(prefix="cbench-", dir=args.dir) as name:
        work = Path(name)
        actor = write_checkpoint(work, args.model, args.ranks, args.dtype)
        commands = {
            "cloudrl": [sys.executable, "-c", OURS, actor],
            "verl": [sys.executable, "-W", "ignore", "-c", VERL, actor],
            "copy": [sys.executable, "-c", COPY, actor],
        }
        runs: dict[tuple[str, str], list[Run]] = {}
        for number in range(args.rounds):
            for cache in ("cold", "warm"):
                one_round(work, commands, cache, number, runs)
        report(args, runs)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="1.5B")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", help="where to write; three times the shards' size is needed")
    parser.add_argument("--quick", action="store_true", help="a tiny model, one round: does it work?")
    args = parser.parse_args()
    if args.quick:
        args.model, args.ranks, args.rounds = "tiny", 2, 1
    return args


def write_checkpoint(work: Path, model: str, ranks: int, dtype: str) -> Path:
    """Shards of all ranks, one process after the other."""
    from cloudrl.verl_cpu.tiny_model import make_tiny_model

    actor = work / ACTOR
    actor.mkdir(parents=True)
    for rank in range(ranks):
        command = [sys.executable, "-W", "ignore", HERE / "write_shards.py", actor, model, str(ranks), str(rank), dtype]
        subprocess.run(command, check=True, timeout=TIMEOUT_S)
    tiny = Path(make_tiny_model(work / "tiny"))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tiny / name, actor / "huggingface")
    size = sum(path.stat().st_size for path in actor.glob("*.pt"))
    print(f"Qwen2.5-{model}, {ranks} shards in {dtype}: {size / 1e9:.2f} GB; {os.cpu_count()} processors")
    return actor


def one_round(
    work: Path, commands: Mapping[str, list[object]], cache: str, number: int, runs: dict[tuple[str, str], list[Run]]
) -> None:
    """Each side once, in an order that moves on with the rounds, the copy last."""
    order = ["cloudrl", "verl"] if number % 2 == 0 else ["verl", "cloudrl"]
    for side in [*order, "copy"]:
        set_cache(work / ACTOR, cache)
        extra = [str(_weights(work / "cloudrl"))] if side == "copy" else []
        run = measure([str(part) for part in [*commands[side], work / side, *extra]])
        runs.setdefault((side, cache), []).append(run)
        print(f"  round {number + 1} {cache} {side:8}{run}", flush=True)
    if number == 0 and cache == "cold":
        compare(work / "cloudrl", work / "verl")
    for side in commands:
        shutil.rmtree(work / side)


def set_cache(folder: Path, cache: str) -> None:
    """Put the shards into the page cache, or take them out; and let earlier writes end."""
    os.sync()
    for path in folder.glob("*.pt"):
        with path.open("rb", buffering=0) as file:
            if cache == "cold":
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(PIECE_BYTES):
                    pass


def measure(command: list[str]) -> Run:
    """Run a command; its memory and processor time are those that the kernel counted for it."""
    start = time.monotonic()
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(f"{command} failed:\n{said.read().decode()[-3000:]}")
    return Run(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def _weights(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def compare(ours: Path, theirs: Path) -> None:
    """Every tensor, bit for bit; in a process of its own, since a child counts its parent's memory as its own peak."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPARE, ours, theirs],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        sys.exit(f"the models differ: {done.stderr[-2000:]}")
    print(done.stdout, end="")


def report(args: argparse.Namespace, runs: Mapping[tuple[str, str], list[Run]]) -> None:
    """Medians and ratios; the last line is the summary."""
    parts = []
    for cache in ("cold", "warm"):
        middle = {}
        for side in ("cloudrl", "verl", "copy"):
            each = runs[side, cache]
            middle[side] = Run(*(median(getattr(run, key) for run in each) for key in ("wall_s", "cpu_s", "peak_mb")))
            print(f"median {cache} {side:8}{middle[side]}")
        ours, verl, copy = (middle[side] for side in ("cloudrl", "verl", "copy"))
        parts.append(
            f"{cache} {ours.wall_s:.1f} s against {verl.wall_s:.1f} s of verl ({verl.wall_s / ours.wall_s:.1f}x) "
            f"and {copy.wall_s:.1f} s of a copy, {ours.peak_mb:.0f} MB against {verl.peak_mb:.0f} MB"
        )
    print(f"Qwen2.5-{args.model}, {args.ranks} shards in {args.dtype}: " + "; ".join(parts))


if __name__ == "__main__":
    sys.exit(main())
