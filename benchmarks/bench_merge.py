"""Merging a checkpoint into a Hugging Face model: cloudrl against verl's own merger, and against a mere copy.

    make bench-merge                       # or: python benchmarks/bench_merge.py [CASE ...] [--rounds 3] [--quick]

The sides take turns on the same files in the same run, with these out of the page cache (cold) and in it (warm). Each
is one command in a new process:

- cloudrl: `cloudrl checkpoints merge`, as a user types it, with every check on;
- verl: `python -m verl.model_merger merge --backend fsdp`;
- copy: reads all of it in pieces of 1 MiB, writes as many bytes as the merged model has, and checks and rounds
  nothing: the floor.

The cases:

- dense: a Qwen2.5 in 8 shards (`--model`, `--ranks`, `--dtype`);
- moe: a Qwen3-MoE in 8 shards, whose fused experts become 4,600 matrices;
- lora: the dense model with an adapter of rank 32 at each linear layer; verl's merger writes the base model and the
  adapter beside it, so its side goes on with peft's `merge_and_unload`, which rounds at other places;
- megatron: that Qwen3-MoE in Megatron's distributed format, 4 ranks; verl's merger needs a GPU for it;
- nodes: the dense model on two nodes with disks of their own, which are agents on this machine with real Ray; without
  cloudrl, the shards are copied into one folder, and verl's merger runs there. The agents' own processor time and
  memory are not in the figures.

None waits for the disk to have what was written; each begins when what the one before wrote is there. Wall time,
processor time of the process and its children, and peak resident memory, as the kernel counts them. verl needs a
tokenizer, so the folder gets that of the tiny model. In the first round the tensors of both are compared.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from write_shards import QWEN2

HERE = Path(__file__).parent
_PYTHON = (sys.executable, "-W", "ignore", "-c")
CLOUDRL = Path(sys.executable).with_name("cloudrl")
CASES = ("dense", "moe", "lora", "megatron", "nodes")
TIMEOUT_S = 1800
PIECE_BYTES = 1 << 20
CLUSTER = "bench-merge"
ACTOR = "run/global_step_1/actor"
VERL = """
import runpy, sys
sys.argv = ["merger", "merge", "--backend", "fsdp", "--local_dir", sys.argv[1], "--target_dir", sys.argv[2]]
runpy.run_module("verl.model_merger", run_name="__main__")
"""
ADD_ADAPTER = """
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[-1]
base = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
PeftModel.from_pretrained(base, folder + "/lora_adapter").merge_and_unload().save_pretrained(folder)
"""
GATHER = """
import shutil, sys
one, other, target = sys.argv[1:]
for folder in (one, other):
    shutil.copytree(folder, target + ".raw", dirs_exist_ok=True)
sys.argv[1:] = [target + ".raw/global_step_1/actor", target]
"""
COPY = """
import os, sys
from pathlib import Path
*sources, wanted, target = sys.argv[1:]
size, wanted = sum(os.path.getsize(path) for path in sources), int(wanted)
Path(target).mkdir()
piece = bytearray(1 << 20)
view = memoryview(piece)
read = written = 0
with open(Path(target) / "copy", "wb", buffering=0) as file:
    for path in sources:
        with open(path, "rb", buffering=0) as source:
            while count := source.readinto(piece):
                read += count
                due = min(count, wanted * read // size - written)
                file.write(view[:due])
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
print(sum(one[name].get_tensor(name).equal(other[name].get_tensor(name)) for name in one), len(one))
"""


@dataclass(frozen=True)
class Case:
    """One checkpoint.

    Attributes:
        sides: The command of each side; the folder to be written is added at its end.
        sources: The files with the weights.
        caches: Whether it is measured cold, warm or both.
        is_same: Whether verl's tensors must be ours, bit for bit.
    """

    name: str
    what: str
    sides: Mapping[str, Sequence[object]]
    sources: Sequence[Path]
    caches: tuple[str, ...] = ("cold", "warm")
    is_same: bool = True


@dataclass(frozen=True)
class Run:
    """What one command took."""

    wall_s: float
    cpu_s: float
    peak_mb: float

    def __str__(self) -> str:
        return f"{self.wall_s:6.2f} s, {self.cpu_s:6.2f} s of CPU, {self.peak_mb:6.0f} MB"


Runs = dict[tuple[str, str], list[Run]]
"""By side and cache."""


def main() -> int:
    args = _arguments()
    summary = []
    for name in args.cases or CASES:
        with tempfile.TemporaryDirectory(prefix="cbench-", dir=args.dir) as folder:
            os.environ["CLOUDRL_HOME"] = f"{folder}/home"
            summary += measured(name, args, Path(folder))
    print("\n".join(["", *summary]))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; all by default")
    parser.add_argument("--model", choices=QWEN2, default="0.5B", help="of dense, lora and nodes")
    parser.add_argument("--ranks", type=int, default=8, help="of all but megatron")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", help="where to write; three times the shards' size is needed")
    parser.add_argument("--quick", action="store_true", help="tiny models, one round: does it work?")
    args = parser.parse_args()
    if unknown := set(args.cases) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    args.moe = "tiny" if args.quick else "0.6B"
    if args.quick:
        args.model, args.ranks, args.rounds = "tiny", 2, 1
    return args


def measured(name: str, args: argparse.Namespace, work: Path) -> list[str]:
    """All rounds of a case; its lines of the summary."""
    model = {"moe": f"moe-{args.moe}", "lora": f"lora-{args.model}"}.get(name, f"dense-{args.model}")
    made = _megatron(args, work) if name == "megatron" else _fsdp(model, args, work)
    with _two_nodes(work, made) if name == "nodes" else nullcontext(made) as case:
        return _rounds(case, args.rounds, work)


def _fsdp(model: str, args: argparse.Namespace, work: Path) -> Case:
    """Shards of all ranks, with verl's merger for them."""
    from cloudrl.verl_cpu.tiny_model import make_tiny_model

    actor = work / ACTOR
    actor.mkdir(parents=True)
    _python(HERE / "write_shards.py", actor, model, args.ranks, args.dtype)
    tiny = Path(make_tiny_model(work / "tiny"))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tiny / name, actor / "huggingface")
    is_lora = model.startswith("lora-")
    return Case(
        model,
        f"{args.ranks} shards in {args.dtype}",
        {"cloudrl": _ours("--dir", work / "run"), "verl": [*_PYTHON, VERL + ADD_ADAPTER if is_lora else VERL, actor]},
        sorted(actor.glob("model_*.pt")),
        caches=("warm",) if is_lora else ("cold", "warm"),
        is_same=not is_lora,
    )


def _megatron(args: argparse.Namespace, work: Path) -> Case:
    actor, base = work / ACTOR, work / "base"
    actor.mkdir(parents=True)
    base.mkdir()
    _python(HERE / "write_dist_ckpt.py", actor, base, f"moe-{args.moe}", 4)
    sources = sorted(actor.rglob("*.distcp"))
    ours = _ours("--dir", work / "run", "--base", base)
    return Case(f"megatron-moe-{args.moe}", "4 ranks in bfloat16", {"cloudrl": ours}, sources)


@contextmanager
def _two_nodes(work: Path, case: Case) -> Iterator[Case]:
    """The same shards, half of them on each of two nodes that run."""
    nodes, run = [work / "nodes" / f"node-{rank}" / "run" for rank in range(2)], work / "run"
    for folder in nodes:
        (folder / "global_step_1/actor").mkdir(parents=True)
    half = len(case.sources) // 2
    for number, path in enumerate(case.sources):
        path.rename(nodes[number >= half] / path.relative_to(run))
    shutil.copytree(run, nodes[0], dirs_exist_ok=True)
    start = [sys.executable, HERE / "start_cluster.py", CLUSTER, "--no-files", "--disks", work / "nodes"]
    try:
        subprocess.run([*map(str, start)], check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
        yield Case(
            f"{case.name} on two nodes",
            case.what,
            {"cloudrl": _ours("--cluster", CLUSTER), "verl": [*_PYTHON, GATHER + VERL, *nodes]},
            sorted((work / "nodes").rglob("model_*.pt")),
        )
    finally:
        subprocess.run([CLOUDRL, "down", CLUSTER, "--yes"], check=False, timeout=TIMEOUT_S, capture_output=True)


def _ours(*options: object) -> list[object]:
    """The command that a user types."""
    return [CLOUDRL, "checkpoints", "merge", "1", *options, "--to"]


def _python(*words: object) -> None:
    subprocess.run([sys.executable, "-W", "ignore", *map(str, words)], check=True, timeout=TIMEOUT_S)


def _rounds(case: Case, rounds: int, work: Path) -> list[str]:
    size = sum(path.stat().st_size for path in case.sources)
    title = f"{case.name}, {case.what}: {size / 1e9:.2f} GB; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    print(title, flush=True)
    runs: Runs = {}
    for number in range(rounds):
        for cache in case.caches:
            one_round(work, case, cache, number, runs)
    return [title, *report(case, runs)]


def one_round(work: Path, case: Case, cache: str, number: int, runs: Runs) -> None:
    """Each side once, in an order that moves on with the rounds, the copy last."""
    (work / "out").mkdir()
    order = list(case.sides) if number % 2 == 0 else list(case.sides)[::-1]
    for side in [*order, "copy"]:
        set_cache(case.sources, cache)
        target = work / "out" / side
        copy = [*_PYTHON, COPY, *case.sources, _weights(work / "out" / "cloudrl")]
        run = measure([str(word) for word in (*case.sides.get(side, copy), target)])
        runs.setdefault((side, cache), []).append(run)
        print(f"  round {number + 1} {cache} {side:8}{run}", flush=True)
    if number == 0 and cache == case.caches[0] and "verl" in case.sides:
        compare(work / "out" / "cloudrl", work / "out" / "verl", is_same=case.is_same)
    shutil.rmtree(work / "out")


def set_cache(files: Sequence[Path], cache: str) -> None:
    """Put the weights into the page cache, or take them out; and let earlier writes end."""
    os.sync()
    for path in files:
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


def compare(ours: Path, theirs: Path, *, is_same: bool) -> None:
    """Every tensor, bit for bit; in a process of its own, since a child counts its parent's memory as its own peak."""
    done = subprocess.run(
        [*_PYTHON, COMPARE, ours, theirs], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        sys.exit(f"the models differ: {done.stderr[-2000:]}")
    equal, count = map(int, done.stdout.split())
    print(f"  {equal} of {count} tensors are those of verl's side, bit for bit")
    if is_same and equal < count:
        sys.exit("the models differ")


def report(case: Case, runs: Runs) -> list[str]:
    """Medians, all times, and what these are of cloudrl's in the same round; a line for each side and cache."""
    lines = []
    for cache in case.caches:
        for side in (*case.sides, "copy"):
            each = runs[side, cache]
            raw = " ".join(f"{run.wall_s:.1f}" for run in each)
            times = [run.wall_s / own.wall_s for run, own in zip(each, runs["cloudrl", cache], strict=True)]
            lines.append(f"  {cache} {side:8}{_middle(each)}; {raw} s; {min(times):.2f} to {max(times):.2f} of ours")
    return lines


def _middle(runs: Sequence[Run]) -> Run:
    return Run(*(median(getattr(run, key) for run in runs) for key in ("wall_s", "cpu_s", "peak_mb")))


if __name__ == "__main__":
    sys.exit(main())
