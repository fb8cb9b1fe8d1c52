"""How much disk and memory each node needs, by its models and indexes."""

import pytest

from cloudrl.spec import Cluster
from cloudrl.spec.cluster import billions, disk_for, memory_for


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7), ("Qwen/Qwen2.5-0.5B", 0.5), ("Qwen/Qwen3-30B-A3B", 30),
        ("mistralai/Mixtral-8x7B-v0.1", 56), ("meta-llama/Llama-3.2-1b", 1), ("13Bteam/gpt2", None),
        ("deepseek-ai/DeepSeek-V3", None), ("a/model-4bit", None),
    ],
)  # fmt: skip
def test_parameters_by_name(model: str, size: float | None) -> None:
    assert billions(model) == size


def test_checkpoints_are_shared_by_the_nodes_and_weights_are_not() -> None:
    """150 GB, 2 bytes a weight on each node, and eight checkpoints of 12 bytes over all nodes."""
    seven = {"gpu": "80GB..:8", "models": ["Qwen/Qwen2.5-7B-Instruct"]}
    assert disk_for(Cluster(name="lab", **seven)) == "900GB.."
    assert disk_for(Cluster(name="lab", nodes=2, **seven)) == "500GB.."
    assert disk_for(Cluster(name="lab", nodes=8, **seven)) == "300GB.."


def test_without_a_size_dstack_decides() -> None:
    assert disk_for(Cluster(name="lab", models=["Qwen/Qwen2.5-7B-Instruct"])) is None  # on CPUs
    assert disk_for(Cluster(name="lab", gpu="H100:8", models=["deepseek-ai/DeepSeek-V3"])) is None
    assert disk_for(Cluster(name="lab", gpu="H100:8")) is None


def test_a_published_index_counts_without_a_model_or_a_gpu() -> None:
    """150 GB and 100 GB."""
    assert disk_for(Cluster(name="lab", gpu="H100:8", services=["search:wiki-18"])) == "300GB.."
    assert disk_for(Cluster(name="lab", services=["search:wiki-18"])) == "300GB.."
    seven = {"gpu": "80GB..:8", "models": ["Qwen/Qwen2.5-7B-Instruct"]}
    assert disk_for(Cluster(name="lab", services=["search:wiki-18"], **seven)) == "1000GB.."


@pytest.mark.parametrize(
    ("search", "memory"),
    [
        ({"search": "wiki-18"}, "80GB.."),
        ({"search": "wiki-18", "device": "cuda:0"}, None),
        ({"search": "wiki-18-hnsw", "device": "cuda:0"}, "95GB.."),  # the device is its encoder's
        ({"search": "/data/passages.jsonl"}, None),
    ],
)
def test_an_index_that_is_not_on_a_gpu_needs_memory(search: dict[str, str], memory: str | None) -> None:
    assert memory_for(Cluster.load({"name": "lab", "gpu": "H100:8", "services": [search]})) == memory
