"""A real rank 0 and hundreds of simulated workers: all are READY, no heartbeat is lost, and many are lost as many."""

import asyncio
import time

import pytest
from child_processes import until
from many_workers import Workers
from node_harness import Maker, Nodes
from patience import SLOWER

from cloudrl.protocol.report import Replica

pytestmark = pytest.mark.agents
REPLY_BYTES = 1000
"""Of an answer to a heartbeat, whatever the number of nodes and jobs."""


def start(nodes: Maker, count: int) -> Nodes:
    """Rank 0 alone, which answers."""
    cluster = nodes(count)
    cluster.start_one(0, "--join-timeout-s=120", "--lost-after-s=30")
    until(cluster[0].phase, "rank 0 answers")
    return cluster


async def be_ready(cluster: Nodes, workers: Workers, timeout_s: float) -> None:
    """All of them, with every heartbeat answered."""
    await workers.ready(timeout_s)
    assert not workers.lost
    status = await asyncio.to_thread(cluster[0].status)
    assert [each["rank"] for each in status["nodes"]] == list(range(cluster.count))
    assert {each["phase"] for each in status["nodes"]} == {"ready"}
    assert max(worker.largest_bytes for worker in workers.all) < REPLY_BYTES


async def run_jobs(cluster: Nodes, workers: Workers, count: int) -> None:
    """Jobs with secrets come to all nodes, and no answer has grown when they are over."""
    agent, everywhere = cluster[0].agent, dict.fromkeys(range(cluster.count), Replica(complete=True))

    def submit(job: str) -> None:
        agent.put_secrets(job, {"A_TOKEN": "marker-of-this-test"})
        until(lambda: agent.secrets_state(job) == everywhere, "its secrets are on all nodes")

    for number in range(count):
        await asyncio.to_thread(submit, f"job{number}")
    least = {worker.report.rank: worker.beats + 2 for worker in workers.all}
    await asyncio.to_thread(
        until, lambda: all(each.beats >= least[each.report.rank] for each in workers.all), "two heartbeats of each"
    )
    assert {worker.reply.announced for worker in workers.all} == {()}
    assert max(worker.largest_bytes for worker in workers.all) < REPLY_BYTES


async def lose(cluster: Nodes, workers: Workers, ranks: range) -> None:
    """Those that are left hear why all end: how many were lost, and which."""
    gone, left = [[each for each in workers.all if (each.report.rank in ranks) is lost] for lost in (True, False)]
    await workers.kill(gone)
    assert await asyncio.to_thread(cluster[0].exit_code) == 1
    reason = cluster[0].reason()
    assert "(node-" in reason
    assert ", and its agent is gone; so were ranks " in reason
    assert reason.endswith(f": {len(gone)} of {cluster.count} nodes")
    assert len(reason) < 400
    assert {worker.reply.failure and worker.reply.failure.reason for worker in left} == {reason}


def test_64_nodes_and_the_loss_of_half(nodes: Maker) -> None:
    async def scenario() -> None:
        cluster = start(nodes, 64)
        async with Workers(cluster) as workers:
            await be_ready(cluster, workers, 60)
            await run_jobs(cluster, workers, 2)
            await lose(cluster, workers, range(10, 42))

    asyncio.run(scenario())


@pytest.mark.slow
def test_256_nodes(nodes: Maker) -> None:
    """All start in the same moment, and beat for a while when they are READY."""

    async def scenario() -> None:
        cluster = start(nodes, 256)
        async with Workers(cluster) as workers:
            await be_ready(cluster, workers, 120)
            await asyncio.sleep(10)
            ends_at = time.monotonic() + 20 * SLOWER
            before = sum(worker.beats for worker in workers.all)
            await asyncio.sleep(ends_at - time.monotonic())
            assert sum(worker.beats for worker in workers.all) - before > 20 * len(workers.all) / 3
            await run_jobs(cluster, workers, 2)
            assert not workers.lost
            await lose(cluster, workers, range(100, 200))

    asyncio.run(scenario())
