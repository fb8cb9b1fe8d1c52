"""Room for copies of steps, and mirrors that cannot keep up: before the job is sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planning import cluster, job, typed

from cloudrl.jobs import SubmitOptions, plan_job
from cloudrl.jobs.draft import Snapshot
from cloudrl.jobs.local_files import LocalFiles
from cloudrl.verl.memory.runs import RunMemory

RUN = RunMemory("grpo-1", "grpo", "Qwen/Qwen2.5-7B-Instruct", "2 x 8 x H100 of 80 GB", step_s=60.0)
GB = 10**9


def warnings(*words: str, run: RunMemory | None = RUN, facts: Any = None, **options: Any) -> list[str]:
    asked = SubmitOptions(overrides=typed(*words), durable=True, **options)
    there = cluster(gpu="H100:8", provider="dstack", asks_trainers=True, **(facts or {}))
    snapshot = Snapshot(there, LocalFiles(Path("/nowhere")), runs=(run,) if run else ())
    said = plan_job(job(), asked, snapshot).warnings
    return [text for text in said if "--mirror-rate" in text or "for copies of" in text]


def mirrored(*words: str, rate: str | None = "100MB", **more: Any) -> list[str]:
    return warnings(*words, mirror="/mnt/runs", mirror_rate=rate, **more)


def test_a_mirror_that_is_slower_than_saves_come() -> None:
    [text] = mirrored("trainer.save_freq=5")
    assert text == (
        "--mirror-rate 100MB: a save of 45.7 GB takes a node 7 min 16 s, and the next one comes after 5 min 00 s "
        "(trainer.save_freq=5, steps as long as in run grpo-1): the mirror leaves saves out. It keeps up with "
        "--mirror-rate 146MB or --save-every 8m"
    )
    assert mirrored("trainer.save_freq=5", rate="146MB") == [], "the number that it names will do"
    assert mirrored("trainer.save_freq=8") == []


def test_saves_by_the_clock_need_no_earlier_run() -> None:
    [text] = mirrored("trainer.save_freq=50", run=None, save_every="5m")
    assert "comes after 5 min 00 s (--save-every)" in text
    assert mirrored("trainer.save_freq=50", run=None, save_every="8m") == []


@pytest.mark.parametrize(
    "more",
    [
        {"run": None},
        {"run": replace(RUN, shape="1 x 8 x H100 of 80 GB")},
        {"rate": None},
    ],
)
def test_nothing_is_said_of_what_is_not_known(more: dict[str, Any]) -> None:
    assert mirrored("trainer.save_freq=5", **more) == []


def test_one_node_sends_all_of_a_shared_folder() -> None:
    shared = {"shared_checkpoints": True}
    [text] = mirrored("trainer.save_freq=8", facts=shared)
    assert "a save of 91.4 GB takes a node 14 min 32 s" in text


def test_room_for_a_nodes_own_saves_and_for_copies() -> None:
    words = ("trainer.save_freq=10", "trainer.max_actor_ckpt_to_keep=2")
    [text] = warnings(*words, facts={"disk_bytes": 200 * GB})
    assert text == (
        "each node needs room for 3 of its own saves and for copies of 2 from another node, 228 GB, and 200 GB are "
        "free: some steps will stay on one machine. A larger disk: --set disk=SIZE, or "
        "trainer.max_actor_ckpt_to_keep=1"
    )
    assert warnings(*words, facts={"disk_bytes": 230 * GB}) == []
    assert warnings(words[0], facts={"disk_bytes": 185 * GB}) == []
    assert warnings(*words, facts={"disk_bytes": 200 * GB, "shared_checkpoints": True}) == []
    assert warnings(*words, facts={"disk_bytes": 200 * GB, "nodes": 1}) == []
