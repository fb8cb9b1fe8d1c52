"""A spot machine is taken back under a durable job: real agents that ask the real address, served by a stand-in."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_metadata import Metadata, serving
from node_harness import Maker, Nodes, kill_all, until
from patience import SLOWER
from small_step import write_step

from cloudrl.protocol import job_calls
from cloudrl.protocol.durable_jobs import DurableJob, Verdict
from cloudrl.protocol.interruptions import SWITCH

pytestmark = [
    pytest.mark.root,
    pytest.mark.agents,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip: a network of its own"
    ),
]
_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET (sched.h)."""
_ADDRESS = "169.254.169.254"


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    """What AWS says at its own address, in a network that this thread and all that it starts are in."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    if libc.unshare(_NEW_NETWORK) != 0:
        os.close(before)
        pytest.skip("no network namespaces here")
    try:
        for words in ("link set lo up", f"addr add {_ADDRESS}/32 dev lo"):
            subprocess.run(["ip", *words.split()], check=True, timeout=10 * SLOWER)
        said = Metadata("AWS")
        with serving(said, (_ADDRESS, 80)):
            yield said
    finally:
        libc.setns(before, _NEW_NETWORK)
        os.close(before)


def _start(cluster: Nodes) -> None:
    for rank, asks in enumerate(("off", "on")):
        cluster.start_one(rank, f"--checkpoints={cluster.folder / f'disk-{rank}'}", **{SWITCH: asks})
    cluster.ready()


def _job(cluster: Nodes) -> DurableJob:
    [job] = job_calls.list_jobs(cluster[0].agent)
    return job


def _wish(cluster: Nodes, rank: int) -> str:
    file = cluster[rank].run_dir / f"looks-{rank}" / "save-wish"
    return file.read_text() if file.exists() else ""


def _shard(rank: int) -> str:
    return f"actor/model_world_size_2_rank_{rank}.pt"


def _save(cluster: Nodes) -> None:
    """Step 10 of the run, each rank's shards on its node's disk, as verl saves."""
    whole = write_step(cluster.folder / "whole", 10)
    for path in filter(Path.is_file, whole.rglob("*")):
        rank = 1 if "_rank_1" in path.name else 0
        target = cluster.folder / f"disk-{rank}" / "night" / path.relative_to(cluster.folder / "whole")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def _lose(cluster: Nodes) -> None:
    kill_all([cluster[1].pid])
    cluster.exit_codes()
    until(lambda: not cluster.processes(), "all of the cluster has gone")
    (cluster.control / "jobs").unlink()
    cluster.renew_key()


_SLOW = [pytest.mark.slow, pytest.mark.skipif("CLOUDRL_SLOW" not in os.environ, reason="slow: CLOUDRL_SLOW=1")]


@pytest.mark.parametrize("saves", [False, pytest.param(True, marks=_SLOW)])
def test_the_job_is_asked_to_save_and_its_end_names_the_notice(
    nodes: Maker, metadata: Metadata, *, saves: bool
) -> None:
    """What is saved then is copied without rests, and is where the job goes on."""
    cluster = nodes(2)
    for rank in (0, 1):
        (cluster.folder / f"disk-{rank}").mkdir()
    _start(cluster)
    request = {"entrypoint": "train", "submission_id": "night", "runtime_env": {}, "metadata": {"job_name": "night"}}
    job_calls.submit_job(cluster[0].agent, DurableJob("night", "night", "", request, 0.0, world_size=2, total_steps=40))
    until((cluster.control / "jobs").exists, "the job runs")
    assert _wish(cluster, 0) == _wish(cluster, 1) == ""

    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 120))
    metadata.action = {"action": "terminate", "time": ends}

    until(lambda: _wish(cluster, 0) == _wish(cluster, 1) == "night 1", "trainers are asked to save")
    notices = [report.interruption for report in cluster[0].agent.status().nodes]
    assert [notice and notice.name for notice in notices] == [None, "spot notice of AWS"]
    until(lambda: _job(cluster).attempts[-1].notice != "", "the notice is recorded")
    assert "spot notice of AWS: this machine is taken back in " in cluster[1].text()
    assert "job night is asked to save: node 1 is taken back in " in cluster[0].text()
    kept = json.loads((cluster.folder / "disk-1" / ".cloudrl" / "jobs" / "night.json").read_text())
    assert "AWS takes back node 1 (spot notice)" in json.dumps(kept)

    if saves:
        _save(cluster)
        copied = [cluster.folder / f"disk-{rank}" / "night" / "global_step_10" / _shard(1 - rank) for rank in (0, 1)]
        until(lambda: all(file.exists() for file in copied), "each node has the shards of the other")
        until(lambda: "step 10: two nodes have it now" in cluster[0].text(), "rank 0 has seen it")
        assert "of it are being copied with all of the network" in cluster[0].text()

    metadata.action = None
    _lose(cluster)
    assert " was taken back (spot notice of AWS): no heartbeat for " in cluster[0].reason()
    _start(cluster)

    until(lambda: len(_job(cluster).attempts) == 2, "the job goes on")
    first, second = _job(cluster).attempts
    assert (first.verdict, first.reason) == (
        Verdict.INFRASTRUCTURE, "the cluster was lost: AWS takes back node 1 (spot notice)",
    )  # fmt: skip
    assert second.from_step == (10 if saves else 0)
    assert _wish(cluster, 0) == ""
