"""Exact search on a GPU and on the CPUs of the same machine, over the same vectors, in one run.

    python benchmarks/bench_search_gpu.py [--rows 2000000] [--dim 768] [--out FILE.json]

Vectors are random and of norm 1, which are harder to tell apart than those of passages. For batches of 1, 64 and 512
queries it measures the time of a batch (median, least and most of several), and compares the ids and scores of the
answers; where any differ, it exits with 1. It also measures an encoder in the shape of e5-base with random weights,
and what the index takes of the GPU, beside what `cloudrl retriever serve` says that it takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cloudrl.retriever import memory
from cloudrl.retriever.encoder import Encoder
from cloudrl.retriever.exact import ExactIndex

BATCHES, K = (1, 64, 512), 3
DEVICE = "cuda:0"


def vectors(count: int, dim: int, seed: int) -> Any:
    """Of norm 1, made on the GPU, which takes less time."""
    import torch

    generator = torch.Generator(DEVICE).manual_seed(seed)
    made = np.empty((count, dim), np.float32)
    for start in range(0, count, 1 << 18):
        block = torch.randn((min(1 << 18, count - start), dim), generator=generator, device=DEVICE)
        made[start : start + len(block)] = torch.nn.functional.normalize(block).cpu().numpy()
    return made


def times(call: Callable[[], object], *, least: int, seconds: float) -> list[float]:
    """Seconds of each call, after one that is not counted."""
    call()
    taken: list[float] = []
    while len(taken) < least or sum(taken) < seconds:
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return taken


def shown(taken: list[float]) -> dict[str, Any]:
    """Milliseconds."""
    numbers = {"median": statistics.median(taken), "least": min(taken), "most": max(taken)}
    return {name: round(value * 1000, 3) for name, value in numbers.items()} | {"runs": len(taken)}


def search(rows: Any, queries: Any, sides: dict[str, ExactIndex]) -> list[dict[str, Any]]:
    """Time of a batch by side and size, and whether the answers are those of the first side."""
    found = []
    for size in BATCHES:
        asked = queries[:size]
        expected = next(iter(sides.values())).search(asked, K)
        for side, index in sides.items():
            is_cpu = side.startswith("cpu")
            taken = times(lambda: index.search(asked, K), least=2 if is_cpu else 5, seconds=2.0)  # noqa: B023
            answers = index.search(asked, K)
            found.append(
                {"side": side, "queries": size, "rows": len(rows), "equal": answers == expected, "ms": shown(taken)}
            )
            print(json.dumps(found[-1]), flush=True)
    return found


def taken_on_gpu(make: Callable[[], ExactIndex], queries: Any) -> tuple[ExactIndex, dict[str, float]]:
    """An index, and GiB: of torch's at most, and of the driver's."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, (free, _) = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()
    began = time.perf_counter()
    index = make()
    loaded = time.perf_counter() - began
    index.search(queries, K)
    by_driver = free - torch.cuda.mem_get_info()[0]
    peak = torch.cuda.max_memory_allocated() - before
    return index, {
        "peak_gib": round(peak / 2**30, 3), "driver_gib": round(by_driver / 2**30, 3), "load_s": round(loaded, 2),
    }  # fmt: skip


def encoders() -> list[dict[str, Any]]:
    """Queries in the shape of e5-base, on both."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = [f"word{number}" for number in range(2000)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "e5-base-shape"
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", "passage", ":", *words]
        BertTokenizerFast(vocab={piece: number for number, piece in enumerate(pieces)}).save_pretrained(folder)
        torch.manual_seed(0)
        BertModel(BertConfig()).save_pretrained(folder)
        random = np.random.default_rng(0)
        texts = [" ".join(random.choice(words, 14)) for _ in range(512)]
        made = {device: Encoder(str(folder), device=device) for device in ("cpu", DEVICE)}
        found, exact = [], made["cpu"].encode_queries(texts[:64])
        for device, encoder in made.items():
            for size in BATCHES:
                taken = times(lambda: encoder.encode_queries(texts[:size]), least=3, seconds=1.0)  # noqa: B023
                differs = float(np.abs(encoder.encode_queries(texts[:64]) - exact).max())
                found.append({"encoder": device, "queries": size, "ms": shown(taken), "differs": differs})
                print(json.dumps(found[-1]), flush=True)
    return found


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this needs a GPU that torch can use")
    said = memory.check_gpu(memory.gpu_memory(DEVICE), args.rows * args.dim * 2)
    rows, queries = vectors(args.rows, args.dim, 0), vectors(512, args.dim, 1)
    half, takes = taken_on_gpu(lambda: ExactIndex(rows, device=DEVICE, half=True), queries)
    whole, takes_whole = taken_on_gpu(lambda: ExactIndex(rows, device=DEVICE), queries)
    sides = {"cpu float32": ExactIndex(rows), "gpu float16": half, "gpu float32": whole}
    result = {
        "card": torch.cuda.get_device_name(0), "torch": torch.__version__, "cpu_threads": torch.get_num_threads(),
        "said": said, "takes float16": takes, "takes float32": takes_whole,
        "search": search(rows, queries, sides), "encode": encoders(),
    }  # fmt: skip
    print(json.dumps({key: value for key, value in result.items() if key not in ("search", "encode")}))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))
    if not all(each["equal"] for each in result["search"]):
        sys.exit("answers differ")


if __name__ == "__main__":
    main()
