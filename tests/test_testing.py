"""The fake cluster that users get for their own tests, through the SDK as they use it."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import cloudrl
from cloudrl import testing
from cloudrl.errors import ConnectionFailed, InputError, JobFailed, Unauthorized
from cloudrl.jobs import Line
from cloudrl.testing import AGENT_URL, RAY_URL, FakeCluster
from cloudrl.transport import Connection, inspect_cluster

JOB = cloudrl.Job(name="mine", entrypoint=["python3", "train.py"])


@pytest.fixture
def fake() -> FakeCluster:
    return FakeCluster("mine", nodes=3, gpus_per_node=8, device="gpu")


@pytest.fixture
def ray(fake: FakeCluster) -> cloudrl.RunningCluster:
    return cloudrl.RunningCluster(fake.connection())


def test_the_example_of_its_description() -> None:
    example = textwrap.dedent(str(testing.__doc__).split("\n\n", 1)[1].rsplit("\n\n", 1)[0])
    names: dict[str, Any] = {}
    exec(compile(example, "example", "exec"), names)
    names["test_my_launcher"]()


def test_its_facts_are_seen_through_the_agent_and_through_ray(fake: FakeCluster) -> None:
    facts = inspect_cluster(fake.connection())
    assert (facts.name, facts.gpu_nodes, facts.gpus_per_node) == ("mine", 3, 8)
    plain = inspect_cluster(Connection("plain", RAY_URL, fake.token, send=fake.send))
    assert (plain.gpu_nodes, plain.gpus_per_node, plain.device) == (3, 8, "")


def test_a_job_from_submit_to_its_end(fake: FakeCluster, ray: cloudrl.RunningCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    fake.on_submit = lambda submission_id: fake.write(submission_id, b"one\ntwo\n")
    job = ray.submit(JOB, working_dir=str(tmp_path))
    assert "train.py" in fake.jobs[job.submission_id].body["entrypoint"]
    assert len(fake.packages) == 1
    assert list(job.logs()) == ["one", "two"]
    fake.end(job.submission_id)
    assert job.result().succeeded
    assert [each.submission_id for each in ray.jobs()] == [job.submission_id]


@pytest.mark.parametrize("node_ip", ["10.0.0.1", "10.0.0.2"], ids=["through the agent", "through Ray"])
def test_a_log_that_breaks_off_is_taken_up_again(fake: FakeCluster, ray: cloudrl.RunningCluster, node_ip: str) -> None:
    job = fake.add("one", b"first\nsecond\n")
    job.node_ip, fake.cuts, fake.chunk_bytes = node_ip, [3, 5], 4
    fake.end("one", "FAILED", "it has failed")
    breaks: list[str] = []
    events = list(
        ray.job("one").follow(lines=True, sleep=lambda _s: None, on_break=lambda error: breaks.append(error.message))
    )
    assert [event.text for event in events if isinstance(event, Line)] == ["first", "second"]
    assert breaks
    with pytest.raises(JobFailed, match="it has failed"):
        ray.job("one").result()


def test_a_cluster_that_is_away(fake: FakeCluster, ray: cloudrl.RunningCluster) -> None:
    fake.is_up = False
    for url, ask in ((AGENT_URL, ray.facts), (RAY_URL, ray.jobs)):
        with pytest.raises(ConnectionFailed, match=f"no answer from {url}"):
            ask()


def test_tokens_that_are_refused(fake: FakeCluster, ray: cloudrl.RunningCluster) -> None:
    fake.token = fake.agent_token = "newer"
    for ask in (ray.facts, ray.jobs):
        with pytest.raises(Unauthorized):
            ask()


def test_what_is_not_there(ray: cloudrl.RunningCluster) -> None:
    with pytest.raises(InputError, match="knows no job 'none'"):
        ray.job("none")
    assert len(ray.checkpoints()) == 0


def test_the_page_on_python_has_its_parts(fake: FakeCluster) -> None:
    page = (Path(__file__).parents[1] / "docs/python.md").read_text()
    text = page.split("## Testing your own code")[1].split("\n## ")[0]
    listed = set(re.findall(r"`\.(\w+)", text))
    assert listed == {name for name in vars(fake) if not name.endswith("token")} - {"changed"} | {
        "connection", "add", "write", "end",
    }  # fmt: skip
