"""Files and secrets on a cluster of real agents, each with folders of its own."""

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest
from node_harness import Maker, until

from cloudrl.node.job_secrets import folder_of
from cloudrl.protocol.manifest import Manifest, Part
from cloudrl.protocol.report import Replica
from cloudrl.protocol.wire import to_json

pytestmark = pytest.mark.agents


def test_they_reach_every_node_and_the_secrets_go_with_the_cluster(nodes: Maker) -> None:
    cluster = nodes(2)
    for rank in (0, 1):
        (cluster.folder / f"disk-{rank}").mkdir()
        cluster.start_one(rank, f"--checkpoints={cluster.folder / f'disk-{rank}'}")
    agent = cluster.ready()[0].agent
    body = os.urandom(40_000_000)
    model = Manifest((Part("model/weights", len(body), hashlib.sha256(body).hexdigest()),))
    kept = folder_of(cluster.run_id)

    agent.announce_files(model.address, model.to_json())
    agent.put_file(model.address, "model/weights", [body[:9], body[9:]], offset=0, size_bytes=len(body))
    agent.put_secrets("job1", {"A_TOKEN": "marker-of-this-test"})

    everywhere = dict.fromkeys((0, 1), Replica(complete=True))
    until(lambda: agent.files_state(model.address)[1] == everywhere, "the files are on both nodes")
    until(lambda: agent.secrets_state("job1") == everywhere, "the secrets are on both nodes")
    agent.put_secrets("job1", {"A_TOKEN": "marker-of-this-test"})
    until(lambda: agent.secrets_state("job1") == everywhere, "and again, once they are sent again")
    assert [node.replicas for node in agent.status().nodes] == [{}, {}], "nobody has to be told of it any more"
    for rank in (0, 1):
        root = Path(cluster[rank].status()["facts"]["files_dir"])
        assert (root / model.address / "model" / "weights").read_bytes() == body
    assert len({cluster[rank].status()["facts"]["files_dir"] for rank in (0, 1)}) == 2
    assert agent.status().facts.secrets_dir == str(kept)
    assert stat.S_IMODE((kept / "job1").stat().st_mode) == 0o600
    written = [path for path in cluster.folder.rglob("*") if path.is_file() and path.stat().st_size < 1_000_000]
    assert written
    assert not [path for path in written if b"marker-of-this-test" in path.read_bytes()]

    for rank in (0, 1):
        os.kill(cluster[rank].pid, 15)
    cluster.exit_codes()
    assert not kept.exists()


@pytest.mark.slow
def test_a_cluster_goes_on_after_eleven_thousand_jobs(nodes: Maker) -> None:
    """At 10,700 its heartbeats passed the 1 MiB that rank 0 takes, and it failed."""
    cluster = nodes(2).start().ready()
    agent = cluster[0].agent
    everywhere = dict.fromkeys((0, 1), Replica(complete=True))
    before = len(json.dumps(to_json(agent.status())))
    for number in range(11_000):
        agent.put_secrets(f"job{number}", {"A_TOKEN": "marker-of-this-test"})
    until(lambda: agent.secrets_state("job10999") == everywhere, "the last one's are on both nodes", timeout_s=300)
    for number in (0, 5_000, 10_998):
        assert agent.secrets_state(f"job{number}") == everywhere
    assert len(json.dumps(to_json(agent.status()))) < before + 200
    assert {node.phase for node in agent.status().nodes} == {"ready"}
    assert [each.process.poll() for each in cluster.started.values()] == [None, None]
