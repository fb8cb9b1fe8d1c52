"""The agent's HTTP: who may call, heartbeats, logs, and calls that are passed on to another rank."""

import contextlib
import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import SLOWER
from server_harness import SESSION_LOGS, TOKEN, Served

from cloudrl.node.server import AgentServer
from cloudrl.protocol import routes, wire
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.report import HeartbeatReply, NodeReport, Usage

pytestmark = pytest.mark.io


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A head for calls that are refused, and so change nothing."""
    with contextlib.closing(Served(tmp_path_factory.mktemp("refusing"), 0)) as served:
        yield served


# -- who may call ---------------------------------------------------------------------------------------------

_EXAMPLES = {
    "rank": 0, "job": "job1", "address": "0" * 32, "name": "x", "file": "x", "path": "file", "root": "checkpoints",
    "port": 4711,
}  # fmt: skip
ROUTES = [(each.method, each.url(**_EXAMPLES)) for each in routes.ROUTES]
UNAUTHORIZED = {"error": "wrong or missing token", "code": "unauthorized"}
WRONG = {
    "none": {},
    "empty": {"Authorization": ""},
    "another": {"Authorization": "Bearer wrong-token"},
    "no scheme": {"Authorization": TOKEN},
    "another scheme": {"Authorization": f"Basic {TOKEN}"},
    "lower case": {"Authorization": f"bearer {TOKEN}"},
    "longer": {"Authorization": f"Bearer {TOKEN}x"},
    "shorter": {"Authorization": f"Bearer {TOKEN[:-1]}"},
    "in the query": {},
    "not ascii": {"Authorization": "Bearer \xff\xfe"},
    "of Ray": {"X-Ray-Authorization": f"Bearer {TOKEN}"},
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("verb", "path"), ROUTES)
def test_every_call_needs_the_token(refusing: Served, verb: str, path: str, wrong: str) -> None:
    path += f"?token={TOKEN}" if wrong == "in the query" else ""
    answer = refusing.call(verb, path, token=None, headers=WRONG[wrong], body=None if verb == "GET" else b"{}")
    assert answer.status == 401
    assert answer.json() == UNAUTHORIZED


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        *(("GET", path, 404) for path in ("/", "/v1", "/v1/nothing", "/v1/heartbeat", "/../etc/passwd")),
        *((verb, "/v1/status", 404) for verb in ("POST", "PUT", "DELETE")),
        *((verb, "/v1/status", 501) for verb in ("HEAD", "PATCH", "OPTIONS", "TRACE", "CONNECT", "X-Y")),
    ],
)
def test_without_the_token_not_even_what_is_missing_is_told(
    refusing: Served, verb: str, path: str, status: int
) -> None:
    answer = refusing.call(verb, path, token=None)
    assert answer.status == 401
    assert answer.body == (b"" if verb == "HEAD" else json.dumps(UNAUTHORIZED).encode())
    assert refusing.call(verb, path).status == status


def test_a_port_that_is_taken_leaves_no_listener_on_the_other_address(head: Served) -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            AgentServer(["127.0.0.1", "127.0.0.2"], port, head.agent, head.archiver)
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


# -- connections that are not as they should be -----------------------------------------------------------------


def _raw(port: int, text: bytes) -> bytes:
    """What comes back on a connection of our own until the other side closes it."""
    with socket.create_connection(("127.0.0.1", port), 10 * SLOWER) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


AUTH = f"Authorization: Bearer {TOKEN}\r\n".encode()


@pytest.mark.parametrize(
    "target", [b"http://[/v1/status", b"//[", b"/v1/nodes/1/checkpoints/gr\xfc\xdfe", b"/v1/\xf0\x9f\x92\xa9"]
)
def test_a_target_that_is_no_url(refusing: Served, target: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    answer = _raw(refusing.port, b"GET " + target + b" HTTP/1.1\r\n" + AUTH + b"\r\n")
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 "))
    assert capfd.readouterr().err == ""


def test_a_refused_call_cannot_hide_a_second_one_in_its_body(head: Served) -> None:
    inner = b"GET /v1/status HTTP/1.1\r\n" + AUTH + b"\r\n"
    outer = b"POST /v1/nothing HTTP/1.1\r\n" + AUTH + f"Content-Length: {len(inner)}\r\n\r\n".encode()
    answer = _raw(head.port, outer + inner)
    assert answer.count(b"HTTP/1.1") == 1
    assert answer.startswith(b"HTTP/1.1 404")


# -- heartbeats -------------------------------------------------------------------------------------------------


def _report(rank: Any = 1, **changes: Any) -> bytes:
    report = wire.to_json(NodeReport(rank=1, ip="127.0.0.1", hostname="node-1", agent_port=1))
    return json.dumps({**report, "rank": rank, **changes}).encode()


def test_a_heartbeat_is_heard_and_answered(head: Served) -> None:
    head.state.publish(ready=True)
    answer = head.call("POST", "/v1/heartbeat", body=_report(phase="ray", a_newer_key=1))
    assert (answer.status, answer.json()) == (200, wire.to_json(HeartbeatReply(ready=True)))
    assert [(each.rank, each.phase) for each in head.state.reports()] == [(0, "start"), (1, "ray")]


def test_a_heartbeat_brings_a_failure(head: Served) -> None:
    failure = Failure(FailureKind.SETUP, 1, "`false` exited with 1", "tail")
    head.call("POST", "/v1/heartbeat", body=_report(failure=wire.to_json(failure)))
    assert head.state.failure == failure


def test_a_rank_that_does_not_belong_ends_the_start_and_hears_why(head: Served) -> None:
    answer = head.call("POST", "/v1/heartbeat", body=_report(rank=3))
    failure = head.state.failure
    assert failure is not None
    assert (failure.rank, failure.permanent) == (3, True)
    assert "rank 3 does not belong to this cluster of 3 nodes" in failure.reason
    assert (answer.status, answer.json()["failure"]) == (200, None), "it is judged first"
    head.state.judge(failure)
    answer = head.call("POST", "/v1/heartbeat", body=_report(rank=3))
    assert answer.json()["failure"]["reason"] == failure.reason
    assert [each.rank for each in head.state.reports()] == [0]


def test_a_rank_that_does_not_belong_is_nothing_to_a_cluster_that_is_ready(head: Served) -> None:
    head.state.publish(ready=True)
    assert head.call("POST", "/v1/heartbeat", body=_report(rank=3)).status == 400
    assert head.state.failure is None


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"rank": -1}, {"rank": "1"}, {"models": 5}, {"failure": {}}])
def test_what_is_no_heartbeat_of_this_cluster(
    refusing: Served, wrong: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    answer = refusing.call("POST", "/v1/heartbeat", body=_report(**wrong))
    assert answer.status == 400
    assert "report" in answer.json()["error"] or "does not belong" in answer.json()["error"]
    assert len(refusing.state.reports()) == 1
    assert refusing.state.failure is None
    assert capfd.readouterr().err == ""


WITH_BODY = [
    (each.method, path)
    for each, (_, path) in zip(routes.ROUTES, ROUTES, strict=True)
    if each.name in ("heartbeat", "checkpoint_ranges", "announce_files", "take_secrets")
]


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b"7", b'"text"', b"\xff\xfe", b"[" * 50_000])
@pytest.mark.parametrize(("verb", "path"), WITH_BODY)
def test_a_body_that_is_no_json_object(refusing: Served, verb: str, path: str, body: bytes) -> None:
    answer = refusing.call(verb, path, body=body)
    assert answer.status == 400
    assert answer.json()["error"].startswith("not ")
    assert not refusing.replication.files.root.exists()
    assert refusing.get("/v1/jobs/job1/secrets").status == 404


@pytest.mark.parametrize("length", ["1048577", "9" * 5000, "-1", "x", "1.0", "\xb2", ""])
def test_a_heartbeat_that_is_too_large_is_not_read(refusing: Served, length: str) -> None:
    answer = refusing.call("POST", "/v1/heartbeat", headers={"Content-Length": length})
    assert answer.status == 413
    assert refusing.call("POST", "/v1/heartbeat").status == 413


# -- logs -------------------------------------------------------------------------------------------------------

LOG = f"{SESSION_LOGS}/job-driver-job1.log"


@pytest.mark.parametrize("offset", ["-1", "x", "1.5", "%C2%B2", "9" * 5000, "0x10", "1e3", "%00"])
def test_an_offset_that_is_none(refusing: Served, offset: str) -> None:
    answer = refusing.get(f"/v1/jobs/job1/log?offset={offset}")
    assert answer.status == 400
    assert "number of bytes" in answer.json()["error"]


def test_a_long_log_comes_in_parts_that_fit_together(head: Served) -> None:
    whole = bytes(range(256)) * 10_000
    (head.folder / LOG).write_bytes(whole)
    read, sizes = b"", set()
    while len(read) < len(whole):
        answer = head.get(f"/v1/jobs/job1/log?offset={len(read)}")
        assert 0 < len(answer.body) <= 1 << 20
        read += answer.body
        sizes.add(answer.headers["X-Cloudrl-Size"])
    assert read == whole
    assert sizes == {str(len(whole))}


def test_logs_that_are_not_there(head: Served) -> None:
    assert head.get("/v1/jobs/unknown/log").status == 404
    head.ray_logs = None
    answer = head.get("/v1/jobs/job1/log")
    assert (answer.status, answer.json()) == (404, {"error": "Ray is not up", "code": "not_found"})


@pytest.mark.parametrize(
    "job",
    ["..", "../secret", "..%2fsecret", "%2e%2e%2fsecret", "a/../../secret", "/etc/passwd", "%2fetc%2fpasswd", ".hidden",
     "-x", "x%00", "x%0a", "", "..%5csecret", "x" * 300, "a%2f..%2f..%2fsecret", "%252e%252e%252fsecret"],
)  # fmt: skip
def test_a_job_id_cannot_leave_the_folder_of_the_logs(refusing: Served, job: str) -> None:
    (refusing.folder / "session_1" / "secret.log").write_bytes(b"secret")
    (refusing.folder / SESSION_LOGS / "job-driver-a").mkdir(exist_ok=True)
    answer = refusing.get(f"/v1/jobs/{job}/log")
    assert answer.status == 404
    assert b"secret" not in answer.body.replace(b"..", b"")


def test_a_disk_that_does_not_do_its_part_is_named(head: Served) -> None:
    """The connection was closed without a word, which reads as a cluster that is down."""
    (head.folder / LOG).mkdir()
    answer = head.get("/v1/jobs/job1/log")
    assert answer.status == 507
    assert f"{head.folder / LOG}: Is a directory" in answer.json()["error"]


# -- the archive ------------------------------------------------------------------------------------------------

PIECE = "run/rank-0/session_1/logs/raylet.out.0.gz"


def test_the_archive_has_what_was_written_until_now(head: Served) -> None:
    (head.folder / SESSION_LOGS / "raylet.out").write_text(f"hello {TOKEN}\n")
    answer = head.get("/v1/nodes/0/archive").json()
    assert (answer["run"], answer["problem"]) == ("run", "")
    assert PIECE in [each["path"] for each in answer["pieces"]]
    piece = head.get(f"/v1/nodes/0/archive/{PIECE}")
    assert gzip.decompress(piece.body) == b"hello ***\n"


def test_the_archive_of_another_rank_and_of_another_run(head: Served, worker: Served) -> None:
    (worker.folder / SESSION_LOGS / "raylet.out").write_text("on rank 1\n")
    worker.archiver.update()
    piece = PIECE.replace("rank-0", "rank-1")
    assert piece in [each["path"] for each in head.get("/v1/nodes/1/archive").json()["pieces"]]
    assert gzip.decompress(head.get(f"/v1/nodes/1/archive/{piece}").body) == b"on rank 1\n"
    assert head.get("/v1/nodes/1/archive?run=../run").json() == {"problem": "", "run": "___run", "pieces": []}


@pytest.mark.parametrize("path", ["run", "../../secret", "..%2f..%2fsecret", "run/link.gz", "%2fetc%2fpasswd"])
def test_nothing_but_the_archive_is_shown(head: Served, path: str) -> None:
    (head.checkpoints / "secret").write_bytes(b"secret")
    (head.archiver.root / "run").mkdir(parents=True)
    (head.archiver.root / "run" / "link.gz").symlink_to(head.checkpoints / "secret")
    assert head.get(f"/v1/nodes/0/archive/{path}").status == 403


# -- how busy nodes were ----------------------------------------------------------------------------------------


def test_rank_0_remembers_how_busy_all_nodes_were(head: Served, worker: Served) -> None:
    head.state.update(usage=Usage(5.0, 50.0))
    head.state.record_heartbeat(NodeReport(1, "127.0.0.1", usage=Usage(6.0, 60.0)))
    head.history.look()
    nodes = head.get("/v1/usage").json()["nodes"]
    assert {rank: [row[:2] for row in rows] for rank, rows in nodes.items()} == {"0": [[5.0, 50.0]], "1": [[6.0, 60.0]]}
    assert head.get("/v1/usage?span=day").json()["nodes"].keys() == {"0", "1"}
    assert worker.get("/v1/usage").json()["code"] == "unsupported"


# -- passing on -------------------------------------------------------------------------------------------------


def test_calls_for_another_rank_are_passed_on_to_it(head: Served, worker: Served) -> None:
    (worker.checkpoints / "a file").write_bytes(b"shard of rank 1")
    part = head.get("/v1/nodes/1/checkpoints/a%20file", Range="bytes=0-4")
    assert (part.status, part.body, part.headers["Content-Range"]) == (206, b"shard", "bytes 0-4/15")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("missing", {}, 404), ("..%2fsecret", {}, 403), ("../a-file", {}, 403), ("file", {"Range": "bytes=9-"}, 416)],
)
def test_refusals_of_another_rank_come_through_as_they_are(
    head: Served, worker: Served, path: str, headers: dict[str, str], status: int
) -> None:
    (worker.checkpoints / "file").write_bytes(b"x")
    answer = head.get(f"/v1/nodes/1/checkpoints/{path}", **headers)
    assert answer.status == status
    assert worker.no_folder.read_bytes() not in answer.body


def test_a_rank_that_nobody_has_heard_of(head: Served) -> None:
    for rank in (1, 2, 3, 9999):
        answer = head.get(f"/v1/nodes/{rank}/inventory")
        assert answer.status == 404
        assert answer.json() == {"error": f"rank {rank} is not known here", "code": "unknown_rank"}
    assert head.get("/v1/nodes/99999/inventory").status == 404


def test_a_worker_passes_nothing_on(head: Served, worker: Served) -> None:
    assert worker.get("/v1/nodes/1/inventory").json()["rank"] == 1
    assert worker.get("/v1/nodes/0/inventory").status == 404


def test_a_rank_that_is_dead(head: Served, worker: Served) -> None:
    worker.close()
    answer = head.get("/v1/nodes/1/inventory")
    assert answer.status == 504
    assert "rank 1 (127.0.0.1) does not answer" in answer.json()["error"]


@contextlib.contextmanager
def _rank_1_at(head: Served) -> Iterator[socket.socket]:
    """Something else listens where rank 1 should."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        head.state.record_heartbeat(NodeReport(1, "127.0.0.1", agent_port=other.getsockname()[1]))
        yield other


def test_a_rank_that_is_silent(tmp_path: Path) -> None:
    head = Served(tmp_path / "head", 0, rank_timeout_s=0.5)
    with _rank_1_at(head):
        assert head.get("/v1/nodes/1/inventory").status == 504
    head.close()


def test_a_rank_whose_host_is_off(head: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no connection; were it waited for as for a listing, many would be a minute each."""
    monkeypatch.setattr("cloudrl.node.http_handler._CONNECT_TIMEOUT_S", 0.2)
    with socket.socket() as full, contextlib.ExitStack() as queued:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            waiting = queued.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        head.state.record_heartbeat(NodeReport(1, "127.0.0.1", agent_port=full.getsockname()[1]))
        began = time.monotonic()
        answer = head.get("/v1/nodes/1/inventory")
    assert (answer.status, answer.json()["code"]) == (504, "unreachable")
    assert time.monotonic() - began < 8, "rank 0 waits 10 s for an answer"


def test_a_rank_that_breaks_off(head: Served) -> None:
    """The caller must see it, and not wait for the rest."""

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nten bytes.")

    with _rank_1_at(head) as other:
        thread = threading.Thread(target=answer, args=(other,))
        thread.start()
        with pytest.raises(http.client.IncompleteRead) as caught:
            head.get("/v1/nodes/1/inventory")
        thread.join(10 * SLOWER)
    assert caught.value.partial == b"ten bytes."


def test_another_token_of_a_rank_is_not_the_callers_fault(head: Served, tmp_path: Path) -> None:
    other = Served(tmp_path / "other", 1, token="another")
    head.state.record_heartbeat(other.state.own)
    assert head.get("/v1/nodes/1/inventory").status == 502
    other.close()


def test_a_transfer_to_ray_keeps_the_cluster_busy(head: Served) -> None:
    assert head.get("/v1/status").status == 200
    assert head.transfers == 0
    assert head.call("POST", "/v1/transfers").status == 200
    assert head.transfers == 1
