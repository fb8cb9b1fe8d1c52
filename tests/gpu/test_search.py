"""The retriever on a GPU, against the same on a CPU."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from tiny_encoder import make_encoder, write_corpus

from cloudrl.errors import InputError
from cloudrl.retriever import memory
from cloudrl.retriever.build import BuildOptions, build
from cloudrl.retriever.exact import ExactIndex
from cloudrl.retriever.opening import Source, open_retriever

pytestmark = pytest.mark.gpu
ROWS, DIM, K = 120_000, 768, 10


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """Vectors of norm 1 as of passages, a third of them there twice; more than one block of a GPU."""
    made = np.random.default_rng(0).standard_normal((ROWS, DIM), np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    made[ROWS // 3 : 2 * ROWS // 3] = made[: ROWS // 3]
    return made


@pytest.fixture(scope="module")
def queries(rows: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(1).standard_normal((96, DIM), np.float32) * 0.02
    return rows[:: ROWS // 96][:96] + noise


@pytest.mark.parametrize("half", [False, True])
def test_answers_equal_those_of_the_cpu(rows: np.ndarray, queries: np.ndarray, half: bool, gpu: str) -> None:
    """Bit for bit: what may be among the best is computed once more on the CPU, in float64."""
    here, there = ExactIndex(rows), ExactIndex(rows, device=gpu, half=half)
    expected = here.search(queries, K)
    assert there.search(queries, K) == expected
    assert [there.search(query[None], K)[0] for query in queries[:8]] == expected[:8]


def test_several_threads_may_ask(rows: np.ndarray, queries: np.ndarray, gpu: str) -> None:
    index = ExactIndex(rows, device=gpu, half=True)
    expected, wrong = index.search(queries, K), []

    def ask() -> None:
        wrong.extend(one for one in range(5) if index.search(queries, K) != expected)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_vectors_and_scores_stay_within_what_is_said(rows: np.ndarray, queries: np.ndarray, gpu: str) -> None:
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(gpu)
    before = torch.cuda.memory_allocated(gpu)
    index = ExactIndex(rows, device=gpu, half=True)
    index.search(np.repeat(queries, 6, axis=0), K)  # 576 at once: the most that a server asks
    used = torch.cuda.max_memory_allocated(gpu) - before
    assert rows.nbytes // 2 <= used < rows.nbytes // 2 + memory._GPU_WORK_BYTES


def test_an_index_that_does_not_fit_is_refused(gpu: str) -> None:
    found = memory.gpu_memory(gpu)
    assert "% of it is left to others" in memory.check_gpu(found, 1 << 30)
    with pytest.raises(InputError) as caught:
        memory.check_gpu(found, found.free)
    assert "--precision float16 takes half" in (caught.value.hint or "")


def test_a_device_that_is_not_there(gpu: str) -> None:
    with pytest.raises(InputError, match="the device cuda:99 cannot be used"):
        memory.gpu_memory("cuda:99")


def test_built_and_served_on_the_gpu(tmp_path: Path, gpu: str) -> None:
    encoder = tmp_path / "tiny-e5"
    make_encoder(encoder)
    texts = write_corpus(tmp_path / "passages.jsonl", 400)
    options = BuildOptions((tmp_path / "passages.jsonl",), encoder=str(encoder))
    build(options, tmp_path / "cpu", device="cpu")
    build(options, tmp_path / "gpu", device=gpu)
    on_cpu = open_retriever(Source(tmp_path / "cpu"))
    said = list[str]()
    asked = [text.partition("\n")[2] for text in texts[:50]]
    expected = on_cpu.search(asked, 3)
    for place in ("gpu", "cpu"):  # an index of either is served by both: the samples agree
        on_gpu = open_retriever(Source(tmp_path / place, device=gpu), say=said.append)
        found = on_gpu.search(asked, 3)
        for ours, theirs in zip(found, expected, strict=True):
            scores = [[hit.score for hit in each] for each in (ours, theirs)]
            np.testing.assert_allclose(*scores, atol=5e-3)  # the encoder computes in float16 there
    open_retriever(Source(tmp_path / "gpu")).search(asked, 3)
    assert "on cuda:0, which has " in said[0]
