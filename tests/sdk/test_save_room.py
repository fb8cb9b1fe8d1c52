"""Whether saves have room, by what a cluster says of itself."""

from typing import Any

import pytest

from cloudrl.protocol.facts import ClusterFacts
from cloudrl.sdk.save_room import save_room

QWEN = "Qwen/Qwen3-32B"  # 32.8 billion parameters: a save of 393 GB


def facts(model: str = QWEN, free_gb: int = 150, **more: Any) -> ClusterFacts:
    fields = {"nodes": 2, "gpu_nodes": 2, "device": "gpu", "checkpoint_dir": "/checkpoints", **more}
    return ClusterFacts("lab", "id", "dstack", disk_bytes=free_gb * 10**9, models={model: model}, **fields)


def test_both_numbers_and_what_to_do() -> None:
    notice = save_room(facts())
    assert notice is not None
    assert notice.text == (
        "one save of Qwen/Qwen3-32B with its optimizer takes 197 GB on each node, and /checkpoints has room for 150 GB"
    )
    assert "--volume /DISK:/checkpoints" in notice.hint


def test_the_second_save_is_written_before_the_first_is_removed() -> None:
    notice = save_room(facts(free_gb=300))
    assert notice is not None
    assert notice.text == (
        "one save of Qwen/Qwen3-32B with its optimizer takes 197 GB on each node, two take 393 GB, and verl removes "
        "none before it writes the second; /checkpoints has room for 300 GB"
    )


@pytest.mark.parametrize(
    ("given", "is_short"),
    [
        ({"free_gb": 400}, False),
        ({"free_gb": 400, "shared_checkpoints": True}, True),
        ({"free_gb": 800, "shared_checkpoints": True}, False),
        ({"model": "me/my-70b-model"}, True),
        ({"model": "me/my-model"}, False),
        ({"device": "cpu"}, False),
        ({"free_gb": 0}, False),
    ],
)
def test_what_is_too_little(given: dict[str, Any], is_short: bool) -> None:
    assert (save_room(facts(**given)) is not None) is is_short
