"""What the clients of a dashboard and of an agent make of hostile answers: one error, and bounded memory."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hostile_server import DRIBBLING, ENDLESS, WRONG, hostile

from cloudrl import foreign
from cloudrl.checkpoints.remote import RangeClient, RemoteShard
from cloudrl.errors import CheckpointError, CloudrlError, ConnectionFailed, InputError
from cloudrl.protocol import client as agent_client
from cloudrl.protocol.backoff import Backoff
from cloudrl.protocol.client import AgentClient
from cloudrl.retriever.client import RetrieverClient
from cloudrl.saves.places import FileCopy, Location
from cloudrl.transport.log_stream import AgentLog
from cloudrl.transport.ray_client import RayClient

pytestmark = pytest.mark.io

_LIMIT_BYTES = 1 << 20
_KERNEL_BYTES = 16 << 20
"""What the kernel may hold between the two, and a piece."""
RAY: dict[str, Callable[[RayClient], object]] = {
    "version": RayClient.version,
    "nodes": RayClient.nodes,
    "list_jobs": RayClient.list_jobs,
    "get_job": lambda ray: ray.get_job("a"),
    "stop_job": lambda ray: ray.stop_job("a"),
    "state": lambda ray: ray.state("tasks", "01000000"),
    "log_names": lambda ray: ray.log_names("a", "*"),
    "submit_job": lambda ray: ray.submit_job({"submission_id": "a"}),
}
AGENT: dict[str, Callable[[AgentClient], object]] = {
    "status": AgentClient.status,
    "usage": lambda agent: agent.usage("hour"),
    "archive": lambda agent: agent.archive(0),
    "archive_piece": lambda agent: agent.archive_piece(0, "a"),
    "inventory": lambda agent: agent.inventory(0),
    "checkpoint_file": lambda agent: agent.checkpoint_file(0, "a", 100),
    "job_log": lambda agent: list(AgentLog(agent, "a").read(0, follow=False)),
    "stops": lambda agent: agent.stops(0),
    "files_state": lambda agent: agent.files_state("a"),
    "announce_files": lambda agent: agent.announce_files("a", {}),
    "remove_step": lambda agent: agent.remove_step(0, "checkpoints", "a"),
    "secrets_state": lambda agent: agent.secrets_state("a"),
}
CALLS = {**RAY, **AGENT}
REFUSED = "500 in nested JSON"
"""Ray itself says so that it does not take a job, which is neither the user's fault nor the connection's."""


def call(name: str, url: str, timeout_s: float = 10.0) -> object:
    """One call of a client."""
    if name in RAY:
        return RAY[name](RayClient(url, "t", timeout_s=timeout_s))
    return AGENT[name](AgentClient(url, "t", timeout_s=timeout_s))


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MiB for all answers, so that each test takes a moment."""
    monkeypatch.setattr(foreign, "LIMIT_BYTES", _LIMIT_BYTES)
    for name in ("LIMIT_BYTES", "LISTING_BYTES", "_PIECE_BYTES"):
        monkeypatch.setattr(agent_client, name, _LIMIT_BYTES)


@pytest.mark.parametrize("answer", ENDLESS)
@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("name", ["list_jobs", "nodes", "status", "job_log", "archive_piece", "checkpoint_file"])
def test_an_answer_without_an_end(name: str, answer: str):
    with hostile(ENDLESS[answer]) as server:
        with pytest.raises(ConnectionFailed) as caught:
            call(name, server.url)
        assert server.sent_bytes < _LIMIT_BYTES + _KERNEL_BYTES
    assert server.url in caught.value.message


def test_the_usual_limit_is_one_for_all_that_is_read():
    """Without the fixture above: what a laptop can hold."""
    with hostile(ENDLESS["json"]) as server:
        with pytest.raises(ConnectionFailed, match="it has more than 32 MiB"):
            call("list_jobs", server.url)
        assert server.sent_bytes < foreign.LIMIT_BYTES + _KERNEL_BYTES


@pytest.mark.parametrize("answer", DRIBBLING)
@pytest.mark.parametrize("name", ["list_jobs", "status", "archive_piece"])
def test_an_answer_that_dribbles_in(name: str, answer: str):
    with hostile(DRIBBLING[answer]) as server, pytest.raises(ConnectionFailed, match="timed out"):
        call(name, server.url, timeout_s=0.2)


@pytest.mark.parametrize("answer", WRONG)
@pytest.mark.parametrize("name", CALLS)
def test_an_answer_of_another_form(name: str, answer: str):
    """An error of ours, or a value that can be shown; `InputError` where a refusal says it."""
    with hostile(WRONG[answer]) as server:
        try:
            value = call(name, server.url)
        except (ConnectionFailed, InputError) as error:
            shown = str(error)
        except CloudrlError as error:
            shown = str(error) if (name, answer) == ("submit_job", REFUSED) else ""
        else:
            shown = "bytes" if isinstance(value, bytes) or name == "job_log" else repr(value)
    assert 0 < len(shown.encode()) < 5000


@pytest.mark.parametrize("answer", [*ENDLESS, *WRONG])
@pytest.mark.usefixtures("small_limits")
def test_a_retrieval_server(answer: str):
    with hostile({**ENDLESS, **WRONG}[answer]) as server:
        client = RetrieverClient(server.url, "t")
        for call_it in (client.health, lambda: client.retrieve(["a"])):
            try:
                shown = str(call_it())
            except ConnectionFailed as error:
                shown = error.message
            assert len(shown) < 2000
        assert server.sent_bytes < 2 * (_LIMIT_BYTES + _KERNEL_BYTES)


@pytest.mark.parametrize("answer", DRIBBLING)
def test_a_retrieval_server_that_dribbles(answer: str):
    with hostile(DRIBBLING[answer]) as server, pytest.raises(ConnectionFailed, match="retrieval server"):
        RetrieverClient(server.url, timeout_s=0.2).health()


@pytest.mark.parametrize("answer", [*ENDLESS, *WRONG])
def test_ranges_of_a_checkpoint(answer: str):
    """No more is read than was asked for, and what is no such answer is an error."""
    with hostile({**ENDLESS, **WRONG}[answer]) as server:
        agent = AgentClient(server.url, "t", timeout_s=2.0)
        location = Location((0,), ("10.0.0.1",), "checkpoints", "/c")
        shard = RemoteShard(RangeClient(agent, backoff=Backoff(0.01, 0.01, 0.05)), FileCopy(location, "a", 100, 0.0))
        for call_it in (
            lambda: shard.read(0, 10),
            lambda: shard.crc32(0, 100),
            lambda: shard.read_many([(0, 8), (50, 8)]),
        ):
            with suppress(CheckpointError, ConnectionFailed, InputError):
                assert len(str(call_it())) < 200
        assert server.sent_bytes < 40 * _KERNEL_BYTES
