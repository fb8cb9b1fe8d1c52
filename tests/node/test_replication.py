"""Files and secrets over HTTP: taken in by rank 0, pulled by the others, hidden from other users."""

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from child_processes import until
from cut_link import CutLink
from server_harness import SECRET, TOKEN, Served

from cloudrl.node.job_secrets import JobSecrets
from cloudrl.node.node_state import NodeState
from cloudrl.node.replication import ReplicationHub, Replicator
from cloudrl.node.uploads import Store
from cloudrl.protocol import wire
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.manifest import Manifest, Part
from cloudrl.protocol.report import NodeReport, Replica

pytestmark = pytest.mark.io

FILES = {"my model/a b#?.bin": os.urandom(2_500_000), "my model/note": b"note", "my model/训练": b"x"}
MODEL = Manifest(tuple(Part(path, len(body), hashlib.sha256(body).hexdigest()) for path, body in sorted(FILES.items())))
URL = f"/v1/files/{MODEL.address}"
HERE, COMING = wire.to_json(Replica(complete=True)), wire.to_json(Replica())


def announce(node: Served, manifest: Manifest = MODEL, url: str = URL) -> Any:
    return node.call("PUT", url, body=json.dumps(manifest.to_json()).encode())


def put(node: Served, path: str, body: bytes, offset: int = 0) -> Any:
    return node.call("PUT", f"{URL}/content/{quote(path)}?offset={offset}", body=body)


def put_all(node: Served) -> None:
    assert announce(node).status == 200
    for path, body in FILES.items():
        assert put(node, path, body).status == 200


def puller(worker: Served, head: Served) -> Replicator:
    return Replicator(worker.replication, AgentClient(f"http://127.0.0.1:{head.port}", TOKEN))


def beat(worker: Served, head: Served) -> list[str]:
    """One heartbeat; returns what rank 0 has for this node."""
    reply = AgentClient(f"http://127.0.0.1:{head.port}", TOKEN).heartbeat(worker.state.own)
    assert "hf_marker" not in repr(reply)
    return list(reply.announced)


def pull_all(worker: Served, head: Served) -> None:
    """Between two heartbeats."""
    for name in beat(worker, head):
        puller(worker, head).pull(name)
    beat(worker, head)


def test_from_a_client_to_every_node(head: Served, worker: Served):
    put_all(head)
    assert head.get(URL).json()["nodes"] == {"0": HERE, "1": COMING, "2": COMING}

    assert beat(worker, head) == [f"files/{MODEL.address}"]
    pull_all(worker, head)

    assert head.get(URL).json()["nodes"] == {"0": HERE, "1": HERE, "2": COMING}
    for path, body in FILES.items():
        assert (worker.replication.files.root / MODEL.address / path).read_bytes() == body


def test_what_is_still_coming_is_nobodys_business(head: Served, worker: Served):
    announce(head)
    state = put(head, "my model/note", b"note").json()
    assert state["files"]["my model/note"] == 4
    assert state["nodes"] == {"0": COMING, "1": COMING, "2": COMING}

    assert head.get(f"{URL}/content/my%20model/note").status == 404
    assert head.get(f"{URL}/manifest").status == 404
    assert beat(worker, head) == []


def test_a_pull_that_broke_off_goes_on(head: Served, worker: Served):
    put_all(head)
    store = worker.replication.files
    store.begin(MODEL)
    with (head.replication.files.root / MODEL.address / "my model/a b#?.bin").open("rb") as source:
        store.write(MODEL.address, "my model/a b#?.bin", 0, 1_000_000, source)

    puller(worker, head).pull(f"files/{MODEL.address}")

    assert store.manifest(MODEL.address) == MODEL


def test_a_folder_that_both_nodes_see(head: Served, worker: Served):
    worker.replication.files = Store(head.replication.files.root)
    put_all(head)

    puller(worker, head).pull(f"files/{MODEL.address}")

    assert worker.state.own.replicas == {f"files/{MODEL.address}": Replica(complete=True)}


def test_a_node_whose_disk_takes_nothing_says_so(head: Served, worker: Served):
    """The client waited 180 s and was told that nothing moves."""
    worker.replication.files = Store(worker.no_folder / "files")
    worker.replication.secrets.folder = worker.no_folder
    put_all(head)
    head.call("PUT", "/v1/jobs/job1/secrets", body=b'{"A_TOKEN": "x"}')

    pull_all(worker, head)

    errors = [head.get(path).json()["nodes"]["1"]["error"] for path in (URL, "/v1/jobs/job1/secrets")]
    assert all(re.search(r"a-file.*: (Not a directory|File exists)", error) for error in errors)


@pytest.mark.parametrize("every", [32 << 20, 100_000])
def test_a_connection_that_breaks_within_an_answer_leaves_nothing_half(
    head: Served, worker: Served, monkeypatch: pytest.MonkeyPatch, every: int
):
    """Files were said to be complete, and the secrets of a job were an empty script."""
    put_all(head)
    head.call("PUT", "/v1/jobs/job1/secrets", body=b'{"A_TOKEN": "x"}')
    files, job_secrets = beat(worker, head)
    monkeypatch.setattr("cloudrl.node.replication._REPORT_EVERY_BYTES", every)
    with CutLink(head.port) as link:
        pull = Replicator(worker.replication, AgentClient(link.url, TOKEN))
        for _ in range(2):
            link.cut_at = [link.passed + 500_000]
            pull.pull(files)
        link.cut_at = [link.passed]
        pull.pull(job_secrets)
        assert worker.replication.secrets.read("job1") is None
        assert not any(each.complete or each.error for each in worker.state.own.replicas.values())
        assert (files in worker.state.own.replicas) == (every == 100_000), "it reports how much has come"
        assert link.cut_at == []

        for name in (files, job_secrets):
            pull.pull(name)

    assert all(each.complete for each in worker.state.own.replicas.values())
    assert worker.replication.files.manifest(MODEL.address) == MODEL


def test_rank_0_that_is_gone_for_a_moment(head: Served, worker: Served):
    put_all(head)
    pull = puller(worker, head)
    head.close()

    pull.pull(f"files/{MODEL.address}")

    assert worker.state.own.replicas == {}


def test_the_thread_brings_what_is_wanted(head: Served, worker: Served):
    put_all(head)
    head.call("PUT", "/v1/jobs/job1/secrets", body=b'{"A_TOKEN": "x"}')
    wanted = beat(worker, head)
    assert len(wanted) == 2

    puller(worker, head).want(wanted)

    until(lambda: worker.state.own.replicas == dict.fromkeys(wanted, Replica(complete=True)), "both are here")


# -- heartbeats -----------------------------------------------------------------------------------------------------


def sizes(worker: Served, head: Served) -> tuple[int, int]:
    """Bytes of a heartbeat and of its answer."""
    reply = AgentClient(f"http://127.0.0.1:{head.port}", TOKEN).heartbeat(worker.state.own)
    return tuple(len(json.dumps(wire.to_json(each))) for each in (worker.state.own, reply))


def test_heartbeats_do_not_grow_with_jobs(head: Served, worker: Served):
    """Secrets, and files that a rank has, were told in each for ever, 98 bytes a job."""
    pull = puller(worker, head)
    before = sizes(worker, head)
    status = len(head.get("/v1/status").body)
    for number in range(60):
        head.call("PUT", f"/v1/jobs/job{number}/secrets", body=b'{"A_TOKEN": "x"}')
        (name,) = beat(worker, head)
        pull.pull(name)
        assert beat(worker, head) == [], "rank 0 has heard that it is here"
        pull.want([])
        assert head.get(f"/v1/jobs/job{number}/secrets").json()["nodes"]["1"] == HERE
    assert sizes(worker, head) == before
    assert len(head.get("/v1/status").body) == status
    assert len(list(worker.replication.secrets.folder.iterdir())) == 60, "drivers of all jobs find theirs"


def test_ten_thousand_jobs_that_are_over(tmp_path: Path):
    kept = Kept(tmp_path)
    hub = ReplicationHub(NodeState(NodeReport(0, "10.0.0.1")), 3, Store(tmp_path), kept)
    for number in range(10_000):
        hub.put_secrets(f"job{number}", "script")
        for rank in (1, 2):
            (name,) = hub.missing_on(rank)
            hub.hear(rank, {name: Replica(complete=True)})
    assert hub.missing_on(1) == hub.missing_on(2) == ()
    assert all(hub.secrets_state(f"job{number}")["nodes"]["2"] == Replica(complete=True) for number in (0, 9_999))
    assert hub.state.own.replicas == {}
    assert hub.state.published.announced == ()


class Kept(JobSecrets):
    """Writes nothing."""

    def write(self, job: str, script: str) -> None:
        """See `JobSecrets`."""


def test_what_no_client_waits_for_is_announced_no_more(tmp_path: Path):
    """The disk of a rank is full: without an end each job would add to its heartbeats."""
    now = [1000.0]
    hub = ReplicationHub(NodeState(NodeReport(0, "10.0.0.1")), 2, Store(tmp_path), Kept(tmp_path), clock=lambda: now[0])
    hub.put_secrets("job1", "script")
    (name,) = hub.missing_on(1)
    hub.hear(1, {name: Replica(error="the disk is full")})
    now[0] += 500
    assert hub.secrets_state("job1")["nodes"]["1"] == Replica(error="the disk is full")
    now[0] += 500
    assert hub.missing_on(1) == (name,), "a client has asked since"
    now[0] += 500
    assert hub.missing_on(1) == ()
    assert hub.secrets_state("job1")["nodes"] == {"0": Replica(complete=True), "1": Replica()}
    assert hub.missing_on(1) == (name,), "it asks again"


def test_thousands_of_jobs_in_one_moment(tmp_path: Path):
    """Heartbeats stay far below the 1 MiB that rank 0 takes; what cannot come keeps nothing else from coming."""
    hub = ReplicationHub(NodeState(NodeReport(0, "10.0.0.1")), 2, Store(tmp_path), Kept(tmp_path))
    for number in range(11_000):
        hub.put_secrets(f"job{number}", "script")
        if number < 100:
            hub.hear(1, dict.fromkeys(hub.missing_on(1), Replica(error="the disk is full")))
    rounds = 0
    while any(not hub.secrets_state(f"job{number}")["nodes"]["1"].complete for number in (100, 10_999)):
        names = hub.missing_on(1)
        assert len(names) <= 256
        hub.hear(1, dict.fromkeys(names, Replica(complete=True)))
        rounds += 1
    assert rounds < 50


def test_files_of_a_job_that_is_sent_again(head: Served, worker: Served):
    """The nodes have been started again: rank 0 does not know which of them has what, and asks."""
    put_all(head)
    pull_all(worker, head)
    anew = ReplicationHub(head.state, 3, head.replication.files, head.replication.secrets)
    head.agent.replication = anew
    worker.state.keep("replicas", ())
    assert announce(head).json()["nodes"] == {"0": HERE, "1": COMING, "2": COMING}
    pull_all(worker, head)
    assert head.get(URL).json()["nodes"]["1"] == HERE


def test_a_reply_names_no_other_nodes_gpus(head: Served, worker: Served):
    ips = tuple(f"10.0.{rank // 250}.{rank % 250}" for rank in range(256))
    head.state.publish(gpus_of_ray=ips)
    before = sizes(worker, head)[1]
    head.state.publish(gpus_of_ray=(*ips, worker.state.own.ip))
    assert AgentClient(f"http://127.0.0.1:{head.port}", TOKEN).heartbeat(worker.state.own).gpus_of_ray == (
        worker.state.own.ip,
    )
    assert sizes(worker, head)[1] < before + 50 < 1000


LEAVING = ["../secret", "%2e%2e/secret", "..%2fsecret", "/etc/passwd", "my%20model/../../secret"]


@pytest.mark.parametrize("path", [*LEAVING, "my%20model", "other"])
def test_never_outside_the_folder(head: Served, path: str):
    (head.folder / "secret").write_bytes(SECRET)
    (head.replication.files.root / "secret").parent.mkdir(parents=True)
    (head.replication.files.root / "secret").write_bytes(SECRET)
    put_all(head)
    before = {each: each.stat().st_mtime_ns for each in head.folder.rglob("*")}

    assert SECRET not in head.get(f"{URL}/content/{path}").body
    assert head.call("PUT", f"{URL}/content/{path}?offset=0", body=b"evil").status in (404, 409)

    assert {each: each.stat().st_mtime_ns for each in head.folder.rglob("*")} == before


def test_what_is_no_manifest(head: Served):
    assert head.call("PUT", URL, body=b'{"parts": [["../x", 1, "' + b"a" * 64 + b'"]]}').status == 400
    assert not head.replication.files.root.exists()


def test_a_manifest_of_something_else(head: Served):
    answer = announce(head, url=f"/v1/files/{'0' * 32}")
    assert answer.status == 400
    assert "belongs to" in answer.json()["error"]


def test_a_manifest_without_end(head: Served):
    answer = head.call("PUT", URL, headers={"Content-Length": str(9 << 20)})
    assert answer.status == 413


def test_other_ranks_take_nothing_from_clients(worker: Served):
    assert announce(worker).status == 409
    assert put(worker, "my model/note", b"note").status == 409
    assert worker.call("PUT", "/v1/jobs/job1/secrets", body=b"{}").status == 409


# -- secrets ------------------------------------------------------------------------------------------------------

SECRETS = {"HF_TOKEN": "hf_marker", "WANDB_API_KEY": "a'b $HOME"}


def test_secrets_on_every_node(head: Served, worker: Served):
    body = json.dumps(SECRETS).encode()
    answer = head.call("PUT", "/v1/jobs/job1/secrets", body=body)
    assert head.get("/v1/jobs/job1/secrets").json() == {"nodes": {"0": HERE, "1": COMING, "2": COMING}}

    pull_all(worker, head)

    assert head.get("/v1/jobs/job1/secrets").json() == {"nodes": {"0": HERE, "1": HERE, "2": COMING}}
    paths = [node.replication.secrets.folder / "job1" for node in (head, worker)]
    assert paths[0].read_text() == paths[1].read_text()
    assert "hf_marker" in paths[1].read_text()
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert b"hf_marker" not in answer.body + head.get("/v1/status").body
    assert "hf_marker" not in repr(head.state.own) + repr(head.state.published)


def test_secrets_that_are_sent_again(head: Served, worker: Served):
    """The first attempt to submit broke off; the second has another token."""
    for token in ("first", "second"):
        head.call("PUT", "/v1/jobs/job1/secrets", body=json.dumps({"HF_TOKEN": token}).encode())
        assert head.get("/v1/jobs/job1/secrets").json()["nodes"]["1"] == COMING
        pull_all(worker, head)
        assert head.get("/v1/jobs/job1/secrets").json()["nodes"]["1"] == HERE
    assert "second" in str(worker.replication.secrets.read("job1"))


@pytest.mark.parametrize("body", [b'{"A": 1}', b'{"A B": "x"}', b'{"A": "\\u0000"}'])
def test_what_are_no_secrets(head: Served, body: bytes):
    assert head.call("PUT", "/v1/jobs/job1/secrets", body=body).status == 400
    assert head.get("/v1/jobs/job1/secrets").status == 404
    assert head.get("/v1/jobs/job1/secrets/script").status == 404


@pytest.mark.parametrize("job", ["..", "../x", "a/b", ".hidden", "%2e%2e", "a%2fb"])
def test_secrets_of_no_job(head: Served, job: str):
    assert head.call("PUT", f"/v1/jobs/{job}/secrets", body=b'{"A_TOKEN": "x"}').status == 404
    assert not head.replication.secrets.folder.exists()


def test_a_machine_that_keeps_no_secrets(head: Served):
    head.replication.secrets.folder = head.folder / "nothing" / "secrets"
    answer = head.call("PUT", "/v1/jobs/job1/secrets", body=b'{"A_TOKEN": "x"}')
    assert answer.status == 501
