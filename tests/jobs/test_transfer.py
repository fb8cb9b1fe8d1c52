"""Files and secrets on their way through a real agent's server, over connections that break."""

import os
import sys
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

import pytest
from planning import LEAST, planned_uploads, prepare

sys.path.insert(0, str(Path(__file__).parents[1] / "node"))
from collections.abc import Iterable, Iterator

from fake_clock import Clock
from fake_cluster import FakeCluster
from server_harness import TOKEN, Served

from cloudrl.errors import ConnectionFailed, InputError, Unauthorized
from cloudrl.jobs import Submission, SubmitOptions, send
from cloudrl.jobs.submission import Upload
from cloudrl.jobs.transfer import send_files, wait_replicated
from cloudrl.node.uploads import SPARE_BYTES, Store
from cloudrl.protocol import exchange
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.exchange import Request, Response
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.report import ClusterStatus, Replica
from cloudrl.protocol.wire import from_json
from cloudrl.spec import Job
from cloudrl.transport import Connection

pytestmark = pytest.mark.io

MODEL = "actor_rollout_ref.model.path"
JOB = Job(name="x", device="cpu", verl="0.9.1", overrides=LEAST)
WEIGHTS = os.urandom(12_000_000)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "weights").write_bytes(WEIGHTS)
    return tmp_path


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Served]:
    """The agent of a cluster of one node."""
    with closing(Served(tmp_path / "head", 0, nodes=1)) as served:
        yield served


@pytest.fixture
def item(here: Path, head: Served) -> Upload:
    lab = ClusterFacts("lab", "1", "local", 1, files_dir=str(head.replication.files.root))
    [item] = planned_uploads(lab, SubmitOptions(overrides={MODEL: "./model"})).uploads
    return item


class Broken:
    """Breaks the connection while a file is sent, as often as `breaks` says, each time after so many bytes."""

    def __init__(self, *breaks: int) -> None:
        self.breaks = list(breaks)
        self.sent = 0
        self.calls: list[str] = []

    def __call__(self, request: Request) -> Response:
        self.calls.append(f"{request.method} {request.url.rsplit('/', 1)[-1]}")
        if request.method == "PUT" and "/content/" in request.url:
            request = replace(request, body=self._cut(cast("Iterable[bytes]", request.body)))
        return exchange.send(request)

    def _cut(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        left = self.breaks.pop(0) if self.breaks else None
        for piece in pieces:
            if left is not None and left < len(piece):
                yield piece[:left]
                raise ConnectionAbortedError("cut")
            left = None if left is None else left - len(piece)
            self.sent += len(piece)
            yield piece


def api(head: Served, send: exchange.Send = exchange.send, token: str = TOKEN) -> AgentClient:
    return AgentClient(f"http://127.0.0.1:{head.port}", token, send=send)


def whole(head: Served, item: Upload) -> bool:
    place = head.replication.files.root / item.manifest.address / "model"
    return Path(item.to) == place and (place / "weights").read_bytes() == WEIGHTS


def test_sent_once(head: Served, item: Upload):
    seen: list[tuple[int, int]] = []
    first, second = Broken(), Broken()
    send_files(api(head, first), item, on_upload=lambda *at: seen.append(at))
    assert whole(head, item)
    assert first.sent == item.size_bytes
    assert seen[-1] == (item.size_bytes, item.size_bytes)
    assert seen == sorted(seen)
    send_files(api(head, second), item)
    assert second.calls == [f"PUT {item.manifest.address}"]


def test_it_goes_on_where_it_broke_off(head: Served, item: Upload):
    transport, pauses = Broken(99, 5_000_000, 2_500_000), []  # config.json comes first
    send_files(api(head, transport), item, sleep=pauses.append)
    assert whole(head, item)
    assert len(pauses) >= 2, "once more for each time that the head has not yet noticed the break"
    in_flight = 4 * 2**20  # the buffers of both ends
    assert transport.sent < item.size_bytes + len(pauses) * in_flight, "nothing else was sent twice"


def test_a_connection_that_never_holds(head: Served, item: Upload):
    with pytest.raises(ConnectionFailed):
        send_files(api(head, Broken(*[0] * 99)), item, clock=count().__next__, sleep=lambda _s: None)


def test_a_refused_token_is_not_tried_again(head: Served, item: Upload):
    transport = Broken()
    with pytest.raises(Unauthorized):
        send_files(api(head, transport, token="wrong"), item)
    assert len(transport.calls) == 1


def test_no_room(head: Served, item: Upload):
    head.replication.files = Store(head.folder / "small", free_bytes=lambda _folder: SPARE_BYTES)
    with pytest.raises(InputError, match=r"model: 12\.0 MB are to come"):
        send_files(api(head), item)


def test_a_file_that_changes_meanwhile(head: Served, item: Upload, here: Path):
    (here / "model" / "weights").write_bytes(WEIGHTS[:-1] + b"!")
    with pytest.raises(InputError, match="arrived damaged"):
        send_files(api(head), item)
    (here / "model" / "weights").write_bytes(WEIGHTS[:-1])
    with pytest.raises(InputError, match="has become shorter while it was sent"):
        send_files(api(head), item)


@pytest.mark.parametrize(
    ("path", "reason"), [("/nowhere/weights", "No such file or directory"), ("/proc/self/mem", "Input/output error")]
)
def test_a_file_that_cannot_be_read_is_no_matter_of_the_connection(head: Served, item: Upload, path: str, reason: str):
    """One that is gone, and one whose disk fails."""
    entries = tuple(replace(each, path=Path(path)) for each in item.entries)
    with pytest.raises(InputError, match=f"^{path} cannot be read while it is sent: {reason}"):
        send_files(api(head), replace(item, entries=entries), sleep=lambda _s: pytest.fail("tried again"))


# -- waiting ------------------------------------------------------------------------------------------------------


HERE = Replica(complete=True)


def coming(size_bytes: int = 0) -> Replica:
    return Replica(size_bytes=size_bytes)


def wait(answers: list[dict[int, Replica]]) -> tuple[list[str], float]:
    """Wait while rank 0 says one after the other, the last for ever; what is said, and the seconds it took."""
    said, clock = [], Clock()

    def state() -> dict[int, Replica]:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    try:
        wait_replicated(state, "./model", clock=clock, sleep=clock.sleep, on_wait=said.append)
    except ConnectionFailed as failure:
        said.append(failure.message)
    return said, clock.now


def test_waiting_for_every_node():
    answers = [{0: coming(), 1: coming()}, *({0: HERE, 1: each} for each in (coming(5), coming(9), HERE))]
    assert wait(answers)[0] == ["./model: waiting for ranks 0-1", "./model: waiting for rank 1"]


def test_of_many_nodes_not_each_is_told():
    """One after the other is done."""
    answers = [{rank: HERE if rank < done else coming(done) for rank in range(256)} for done in range(257)]
    said, _ = wait(answers)
    assert said[0] == "./model: waiting for ranks 0-255"
    assert said[1] == "./model: waiting for ranks 128-255"
    assert said[-1] == "./model: waiting for rank 255"
    assert len(said) < 12


def test_many_that_cannot_take_it():
    full = Replica(error="no room")
    with pytest.raises(InputError, match=r"\./model: ranks 1-255 cannot take it: no room"):
        wait([{rank: full if rank else HERE for rank in range(256)}])


def test_a_node_that_cannot_take_it():
    with pytest.raises(InputError, match=r"\./model: rank 1 cannot take it: no room"):
        wait([{0: HERE, 1: coming()}, {0: HERE, 1: Replica(error="no room")}])


def test_nothing_moves():
    said, took_s = wait([{0: HERE, 1: coming(size)} for size in range(2000)])
    assert said[-1] == "./model: nothing has come to rank 1 for 3 min 00 s"
    assert took_s > 2000 * 0.2 + 179, "as long as something moves it is waited for"


# -- all of it ----------------------------------------------------------------------------------------------------


def connection(cluster: FakeCluster, head: Served) -> Connection:
    """A cluster whose agent takes files and secrets."""
    files, secrets = head.replication.files.root, head.replication.secrets.folder
    facts = {**cluster.status["facts"], "files_dir": str(files), "secrets_dir": str(secrets)}
    head.status = from_json(ClusterStatus, {**cluster.status, "facts": facts})
    return Connection("lab", cluster.url, cluster.token, f"http://127.0.0.1:{head.port}", TOKEN, "id-1")


def test_a_job_is_sent_after_its_files_and_secrets(cluster: FakeCluster, head: Served, here: Path):
    (here / "reward.py").write_text(
        "def compute_score(data_source, solution_str, **_):\n    return len(solution_str)\n"
    )
    lab = connection(cluster, head)
    options = SubmitOptions(
        model="./model", reward="./reward.py", env={"MY_TOKEN": "marker-012345"}, submission_id="one"
    )

    submission = prepare(lab, JOB, options)
    shown = submission.render()
    assert not head.replication.files.root.exists()
    assert not head.replication.secrets.folder.exists()
    assert not cluster.packages

    there: list[bool] = []
    cluster.on_submit = lambda _id: there.append(
        (head.replication.files.root / "x").parent.exists()
        and all(Path(item.to).exists() for item in submission.uploads if item.by == "agents")
        and head.replication.secrets.read("one") is not None
        and len(cluster.packages) == 1
    )
    from_a_journal = Submission.from_json(submission.to_json())
    with pytest.raises(InputError, match="job one needs MY_TOKEN, which was not given"):
        send(lab, from_a_journal)
    send(lab, submission)

    assert there == [True]
    sent = cluster.jobs["one"].body
    assert "marker-012345" not in str(sent) + shown
    assert f"{MODEL}={head.replication.files.root}/" in sent["entrypoint"]
    assert "reward.custom_reward_function.path=cloudrl_files/" in sent["entrypoint"]
    assert "marker-012345" in str(head.replication.secrets.read("one"))
    assert "./model -> " in shown
    assert "through the agents" in shown


def test_a_taken_id_sends_nothing(cluster: FakeCluster, head: Served, here: Path):
    (here / "reward.py").write_text(
        "def compute_score(data_source, solution_str, **_):\n    return len(solution_str)\n"
    )
    cluster.add("one")
    lab, env = connection(cluster, head), {"MY_TOKEN": "marker-012345"}
    options = SubmitOptions(model="./model", reward="./reward.py", env=env, submission_id="one")
    submission = prepare(lab, JOB, options)
    with pytest.raises(InputError, match="submission id 'one' is taken"):
        send(lab, submission)
    assert not head.replication.files.root.exists()
    assert not head.replication.secrets.folder.exists()
    assert not cluster.packages


def test_a_fork_of_verl(cluster: FakeCluster, head: Served, tmp_path: Path):
    fork = tmp_path / "fork"
    (fork / "verl" / "version").mkdir(parents=True)
    (fork / "verl" / "__init__.py").touch()
    lab = connection(cluster, head)
    submission = prepare(lab, JOB, SubmitOptions(working_dir=str(fork)))
    assert f"the job runs the verl in {fork} (of unknown version), not the one of the nodes" in submission.notes
    (fork / "verl" / "version" / "version").write_text("0.5.0.dev\n")
    with pytest.raises(InputError, match=r"written for verl 0\.9\.1, and cluster 'lab' has 0\.5\.0\.dev"):
        prepare(lab, JOB, SubmitOptions(working_dir=str(fork)))
