"""Calls to the agent: what it answers, and what else may answer at its address."""

import io
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from quiet_ports import free_ports

sys.path.insert(0, str(Path(__file__).parents[1] / "node"))
from collections.abc import Callable, Iterator

from server_harness import SESSION_LOGS, TOKEN, Served

from cloudrl.errors import ConnectionFailed, InputError, Unauthorized
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.exchange import Request, Response
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.phases import Phase
from cloudrl.testing_answers import respond


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The agent's own server."""
    served = Served(tmp_path_factory.mktemp("head"), 0)
    (served.folder / SESSION_LOGS / "job-driver-job1.log").write_bytes(b"0123456789")
    yield served
    served.close()


def _api(head: Served, token: str = TOKEN) -> AgentClient:
    return AgentClient(f"http://127.0.0.1:{head.port}/", token, timeout_s=5.0)


def test_status(head: Served) -> None:
    assert _api(head).status().phase is Phase.START


def test_logs(head: Served) -> None:
    api = _api(head)
    assert api.job_log("job1") == (b"0123456789", 10)
    assert api.job_log("job1", 4) == (b"456789", 10)
    assert api.job_log("job1", 10) == (b"", 10)
    assert api.job_log("job1", 99) == (b"", 10)


def test_the_start_of_a_file_beside_the_checkpoints(head: Served) -> None:
    folder = head.checkpoints / "run" / "validation"
    folder.mkdir(parents=True)
    (folder / "5.jsonl").write_bytes(b"0123456789")
    (folder / "6.jsonl").touch()
    api = _api(head)
    assert [api.checkpoint_file(0, "run/validation/5.jsonl", limit) for limit in (4, 99)] == [b"0123", b"0123456789"]
    assert [api.checkpoint_file(0, f"run/validation/{name}", 4) for name in ("6.jsonl", "7.jsonl")] == [None, None]


@pytest.mark.parametrize(
    "job", ["unknown", "../logs/job-driver-job1", "a/b", "?offset=3", "#", " ", "job1\n", "%2e%2e"]
)
def test_a_job_without_a_log(head: Served, job: str) -> None:
    assert _api(head).job_log(job) is None


def test_a_rank_that_is_not_there(head: Served) -> None:
    with pytest.raises(InputError, match="rank 1 is not known here"):
        _api(head).inventory(1)


CALLS: dict[str, Callable[[AgentClient], Any]] = {
    "status": lambda api: api.status(),
    "job_log": lambda api: api.job_log("job1"),
    "inventory": lambda api: api.inventory(0),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_token(head: Served, call: str) -> None:
    with pytest.raises(Unauthorized, match=f"the agent at http://127.0.0.1:{head.port} refuses the token") as caught:
        CALLS[call](_api(head, "wrong"))
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("call", CALLS)
def test_nobody(call: str) -> None:
    [port] = free_ports(1)
    with pytest.raises(ConnectionFailed, match=f"no agent answers at http://127.0.0.1:{port}") as caught:
        CALLS[call](AgentClient(f"http://127.0.0.1:{port}", TOKEN, timeout_s=2.0))
    assert "cloudrl status" in str(caught.value.hint)


def test_somebody_who_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConnectionFailed, match="no agent answers"):
            AgentClient(f"http://127.0.0.1:{port}", TOKEN, timeout_s=0.2).status()


ANSWERS = {
    "a web page": (200, b"<html>Welcome to nginx!</html>"),
    "another JSON": (200, b"[1, 2]"),
    "another object": (200, b'{"hello": "world"}'),
    "nothing": (200, b""),
    "a redirect": (302, b""),
    "its own error": (500, b"Internal Server Error"),
    "bad gateway": (502, b'{"error": "rank 1 answered 401"}'),
    "a number": (200, b"7"),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("call", CALLS)
def test_something_else_answers(call: str, answer: str) -> None:
    """Port 8266 of this machine may be anybody's."""
    with pytest.raises(ConnectionFailed) as caught:
        CALLS[call](_answered(*ANSWERS[answer]))
    assert "http://localhost:8266" in caught.value.message


def _answered(status: int, body: bytes | dict[str, Any]) -> AgentClient:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return AgentClient("http://localhost:8266", TOKEN, send=lambda _request: respond(status, content))


@pytest.mark.parametrize("code", [ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.CONFLICT])
def test_a_step_that_the_node_may_not_remove(code: ErrorCode) -> None:
    """A read-only volume is no matter of the connection."""
    with pytest.raises(InputError, match="Read-only file system"):
        _answered(code.status, ApiError(code, "Read-only file system").to_json()).remove_step(0, "checkpoints", "a/b")


def test_a_long_refusal_keeps_its_code() -> None:
    with pytest.raises(InputError, match="path/path"):
        _answered(422, ApiError(ErrorCode.UNREADABLE, "path/" * 4000).to_json()).inventory(0)


@pytest.mark.parametrize("code", ["of_a_newer_release", None, ["not_found"]])
def test_a_refusal_with_a_code_that_nobody_knows_keeps_its_message(code: object) -> None:
    with pytest.raises(ConnectionFailed, match=r'answered 503: the "disk" sleeps$'):
        _answered(503, {"code": code, "error": 'the "disk" sleeps'}).status()


NODES = [{"one": {}}, [], {"0": {"size_bytes": "x"}}]


@pytest.mark.parametrize("value", [*({"nodes": nodes} for nodes in NODES), {}, {"files": [1], "nodes": {}}])
def test_replicas_of_another_form_are_no_agents(value: dict[str, object]) -> None:
    with pytest.raises(ConnectionFailed, match="is not a cloudrl agent"):
        _answered(200, {"files": {}, **value}).files_state("0" * 32)


def test_an_answer_whose_head_was_cut_is_no_empty_one() -> None:
    cut = Response(200, {"x-cloudrl-size": "10"}, io.BytesIO())
    with pytest.raises(ConnectionFailed, match="no agent answers at http://localhost:8266: the connection broke"):
        AgentClient("http://localhost:8266", TOKEN, send=lambda _request: cut).job_log("job1")
    assert cut.stream.closed


def test_what_is_sent() -> None:
    sent: list[Request] = []

    def send(request: Request) -> Response:
        sent.append(request)
        return respond(200, b'{"files": {}, "nodes": {}, "removed": "x"}', {"x-cloudrl-size": "0"})

    api = AgentClient("http://localhost:8266/", TOKEN, send=send)
    api.job_log("a/../b?c#d", 7)
    api.remove_step(1, "checkpoints", "my run/global_step_1")
    api.announce_files("0" * 32, {"parts": []})
    api.files_state("0" * 32)
    url = "http://localhost:8266/v1"
    assert [(each.method, each.url, each.timeout_s) for each in sent] == [
        ("GET", f"{url}/jobs/a%2F..%2Fb%3Fc%23d/log?offset=7", 10.0),
        ("DELETE", f"{url}/nodes/1/checkpoints/my%20run/global_step_1", 10.0),
        ("PUT", f"{url}/files/{'0' * 32}", 60.0),  # of thousands of files
        ("GET", f"{url}/files/{'0' * 32}", 60.0),
    ]
    assert {each.headers["Authorization"] for each in sent} == {f"Bearer {TOKEN}"}
    assert TOKEN not in repr(sent)


def test_a_cluster_that_was_started_again_has_a_new_token(head: Served) -> None:
    refused = []

    def renew(token: str) -> str:
        refused.append(token)
        return TOKEN

    api = AgentClient(f"http://127.0.0.1:{head.port}", "old", refresh=renew)
    assert api.status().phase is Phase.START
    assert api.inventory(0)["rank"] == 0
    assert refused == ["old"]
    with pytest.raises(Unauthorized):
        AgentClient(f"http://127.0.0.1:{head.port}", "old", refresh=lambda token: token).status()


def test_no_proxy_is_asked(head: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    assert _api(head).status().phase is Phase.START


def test_the_token_does_not_show(head: Served) -> None:
    assert TOKEN not in repr(_api(head))
