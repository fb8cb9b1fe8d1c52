import json
import socket
import threading
from urllib.parse import urlsplit

import pytest
from child_processes import until
from fake_cluster import FakeCluster as ServedCluster
from fake_http import Server

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError, Unauthorized
from cloudrl.protocol.exchange import Request, Response
from cloudrl.testing import RAY_URL, FakeCluster
from cloudrl.testing_answers import as_json, respond
from cloudrl.transport import httpx_send
from cloudrl.transport.log_stream import RayLog, follow_log
from cloudrl.transport.ray_client import RayClient, ray_reason
from cloudrl.transport.ray_job import JobStatus, RayJob, RayNode


@pytest.fixture
def api(cluster: FakeCluster) -> RayClient:
    return client(cluster)


def client(cluster: FakeCluster, token: str | None = "right-token") -> RayClient:
    """To a cluster in memory."""
    return RayClient(RAY_URL, token, send=cluster.send)


def answering(*answers: Response) -> RayClient:
    """A client to which a server gives these answers, one after the other."""
    coming = iter(answers)
    return RayClient("http://ray.test:8265", "t", send=lambda _request: next(coming))


def test_only_nodes_that_are_alive_count_and_the_head_is_first(cluster: FakeCluster, api: RayClient):
    cluster.nodes.reverse()
    cluster.nodes.append({"node_id": "x", "node_ip": "10.0.0.9", "state": "DEAD", "resources_total": {}})
    nodes = api.nodes()
    assert [(each.ip, each.is_head, each.gpus) for each in nodes] == [("10.0.0.1", True, 1.0), ("10.0.0.2", False, 1.0)]


def test_a_node_without_what_we_ask_for():
    assert RayNode.read({"state": "ALIVE"}) == RayNode("", "", is_head=False, gpus=0.0)


def test_jobs_are_listed_oldest_first_without_bare_drivers_and_an_id_is_used_once(cluster: FakeCluster, api: RayClient):
    cluster.add("first")
    cluster.add("run-1")
    assert [job.submission_id for job in api.list_jobs()] == ["first", "run-1"]
    with pytest.raises(
        InputError, match=r"'run-1' is taken.*; Ray says: Job with submission_id run-1 already exists"
    ) as caught:
        api.submit_job({"entrypoint": "true", "submission_id": "run-1"})
    assert f"cloudrl jobs logs -f ray://{urlsplit(api.ray_url).netloc}/run-1" in str(caught.value.hint)


@pytest.mark.parametrize("hostile", ["a/b", "../../etc", "a?b=c", "a b", "é", "a%2Fb", "#x"])
def test_names_stay_one_part_of_the_path(cluster: FakeCluster, api: RayClient, hostile: str):
    with pytest.raises(InputError, match="knows no job"):
        api.get_job(hostile)
    api.package_exists(hostile)
    assert cluster.requests == [
        ("GET", f"/api/jobs/{hostile}"), ("GET", "/api/version"), ("GET", f"/api/packages/gcs/{hostile}")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("token", "says"), [("wrong", "refuses the token"), (None, "wants a token, and none was given")]
)
def test_a_refused_token(cluster: FakeCluster, token: str | None, says: str):
    api = client(cluster, token)
    for call in (api.version, api.nodes, api.list_jobs, lambda: api.open_log("node", "file", follow=False)):
        with pytest.raises(Unauthorized, match=says) as caught:
            call()
        assert "RAY_AUTH_TOKEN" in str(caught.value.hint)


def test_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionFailed, match=rf"no Ray answers at http://127.0.0.1:{port}") as caught:
            RayClient(f"http://127.0.0.1:{port}").version()
    assert "cloudrl status" in str(caught.value.hint)


def test_a_server_that_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = RayClient(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)
        with pytest.raises(ConnectionFailed, match=r"no Ray answers.* timed out"):
            api.version()


def test_a_server_that_speaks_something_else():
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(ConnectionFailed, match="no Ray answers"):
            RayClient(f"http://127.0.0.1:{other.getsockname()[1]}", timeout_s=5).version()
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        respond(200, b"<html>Jupyter</html>"),
        as_json({"version": 1}),
        as_json(["ray_version"]),
        respond(404, b"404: Not Found"),
        respond(302, headers={"Location": "/login"}),
        respond(502, b"Bad Gateway"),
    ],
    ids=["a page", "a number", "a list", "404", "302", "502"],
)
def test_an_answer_that_is_not_rays(answer: Response):
    with pytest.raises(ConnectionFailed, match=r"not Ray's job server|answered \d+"):
        answering(answer).version()


def test_other_forms_of_other_answers():
    with pytest.raises(ConnectionFailed, match="another form"):
        answering(as_json({"data": {"result": []}})).nodes()
    with pytest.raises(ConnectionFailed, match="is an object, not a list"):
        answering(as_json({})).list_jobs()


@pytest.mark.parametrize("url", ["localhost:8265", "ray://localhost:10001", "", "http://", "http://[::1"])
def test_an_address_that_is_no_url(url: str):
    with pytest.raises(InputError, match="is not the URL of a Ray dashboard"):
        RayClient(url)


def test_the_environment_cannot_lead_elsewhere(served: ServedCluster, monkeypatch: pytest.MonkeyPatch):
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert RayClient(served.url, "right-token").version()["ray_version"] == "2.60.0"


def test_answers_are_asked_for_as_they_are():
    """They are read raw, so a proxy on the way must not compress them."""
    asked: list[str] = []

    def answer(request: Request) -> Response:
        asked.extend(value for name, value in request.headers.items() if name.lower() == "accept-encoding")
        return respond(200)

    server = Server(0, answer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    for headers in ({}, {"accept-encoding": "br"}):
        with httpx_send.send(Request("GET", url, headers)):
            pass
    server.close()
    assert asked == ["identity", "br"]


def test_a_body_can_be_read_in_pieces():
    server = Server(0, lambda _request: respond(200, bytes(range(256)) * 4096))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    with httpx_send.send(Request("GET", f"http://127.0.0.1:{server.server_address[1]}")) as answer:
        stream = answer.stream
        pieces = [stream.read(3), stream.read(100_000), stream.read1(7), stream.read(), stream.read(9), stream.read1(9)]
    server.close()
    assert [len(piece) for piece in pieces[:3]] == [3, 100_000, 7]
    assert b"".join(pieces) == bytes(range(256)) * 4096


def test_what_ray_says_of_a_bad_request():
    api = answering(respond(400, b"Traceback ...\nTypeError: entrypoint must be a string, got <int>\n"))
    with pytest.raises(InputError, match=r"^Ray refused the job: entrypoint must be a string, got <int>$"):
        api.submit_job({"entrypoint": 1})


@pytest.mark.parametrize("jobs", [as_json([]), respond(503, b"restarting")], ids=["no job", "no answer"])
def test_what_ray_says_of_its_own_failure(jobs: Response):
    api = answering(respond(500, b"No available agent to submit job, please try again later."), jobs)
    with pytest.raises(CloudrlError, match="No available agent to submit job") as caught:
        api.submit_job({"entrypoint": "true"})
    assert caught.value.exit_code == 1


def test_a_package_that_is_too_large_for_the_server(cluster: FakeCluster, api: RayClient):
    cluster.package_limit_bytes = 3
    api.put_package("small.zip", [b"ab", b"c"], 3)
    assert cluster.packages == {"small.zip": b"abc"}
    with pytest.raises(InputError, match=r"refuses a package of 4 bytes: Maximum request body size 3 exceeded"):
        api.put_package("large.zip", [b"abcd"], 4)


def test_the_reason_in_a_traceback():
    head = "Traceback (most recent call last):\n"
    inner = f"{head}ValueError: Job with submission_id j1 exists. Take another.\n"
    outer = f"{head}RuntimeError: Request failed with status code 400: {inner}.\n"
    assert ray_reason(outer) == "Job with submission_id j1 exists. Take another"
    assert ray_reason("Package does not exist") == "Package does not exist"
    assert ray_reason("") == "no reason given"
    assert ray_reason("\n---\n") == "no reason given"
    assert len(ray_reason("x" * 10_000)) == 500


def test_a_job_as_a_newer_ray_might_send_it():
    job = RayJob.read({"submission_id": "j", "status": "PAUSED", "surprise": 1, "start_time": 1500, "metadata": None})
    assert (job.status, job.status.is_terminal) == (JobStatus.UNKNOWN, False)
    assert (job.start_time, job.metadata, job.runtime_env) == (1.5, {}, {})


@pytest.mark.parametrize(
    ("status", "terminal"),
    [("PENDING", False), ("RUNNING", False), ("SUCCEEDED", True), ("FAILED", True), ("STOPPED", True)],
)
def test_which_states_are_an_end(status: str, terminal: bool):
    assert JobStatus(status).is_terminal is terminal
    assert str(JobStatus(status)) == status
    assert json.dumps(JobStatus(status)) == f'"{status}"'


class TestLog:
    @pytest.fixture
    def cluster(self, served: ServedCluster) -> ServedCluster:
        return served

    @pytest.fixture
    def api(self, served: ServedCluster) -> RayClient:
        return RayClient(served.url, "right-token", timeout_s=5)

    def test_a_driver_that_has_no_node_yet(self, cluster: ServedCluster, api: RayClient):
        job = cluster.add("run", b"text", status="PENDING")
        job.node_ip = None
        source, silences = RayLog(api, "run", poll_s=(0.01, 0.01), sleep=lambda _: None), 0
        for chunk in source.read(0, follow=True):
            if chunk:
                break
            silences += 1
            job.node_ip = "10.0.0.1" if silences >= 3 else None

        assert silences >= 3

    def test_a_driver_that_never_started(self, cluster: ServedCluster, api: RayClient):
        cluster.add("run", status="FAILED").node_ip = None
        source = RayLog(api, "run", sleep=lambda _: None)
        assert b"".join(follow_log(lambda: source, lambda: True)) == b""

    def test_giving_up_in_the_middle_leaves_no_thread(self, cluster: ServedCluster, api: RayClient):
        cluster.add("run", b"x" * 4000)
        stream = RayLog(api, "run", poll_s=(0.01, 0.01)).read(0, follow=True)
        assert next(chunk for chunk in stream if chunk)
        stream.close()
        until(
            lambda: not [each for each in threading.enumerate() if each.name == "cloudrl-log"], "the thread has ended"
        )
