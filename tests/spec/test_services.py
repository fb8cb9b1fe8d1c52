"""Services and the files that they need, as they are declared."""

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.protocol.options import Ports
from cloudrl.protocol.services import Artifact as AgentArtifact
from cloudrl.protocol.services import Service as AgentService
from cloudrl.protocol.services import parse_service as as_the_agent_reads
from cloudrl.spec import Artifact, Cluster, Service
from cloudrl.spec.services import agent_service, parse_service


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("8000:bash launch.sh", "8000:bash launch.sh"),
        (" 8000 : bash launch.sh ", "8000:bash launch.sh"),
        ("08000:a:b", "8000:a:b"),
        ("8000:cd /x &&\n  bash y", "8000:cd /x &&\n  bash y"),
    ],
)
def test_a_port_and_a_command(written: str, kept: str) -> None:
    assert Cluster(name="one", services=[written]).services == (kept,)


def test_every_port_of_ray_and_the_agent_is_refused() -> None:
    numbers = [port for each in astuple(Ports()) for port in (each if isinstance(each, tuple) else [each])]
    assert len(numbers) == 10
    for port in numbers:
        with pytest.raises(SpecError, match=f"port {port} belongs to"):
            parse_service(f"{port}:a")


@given(st.integers(1, 9999).filter(lambda port: port not in (6379, 8265, 8266)), st.text(min_size=1))
def test_the_agent_reads_what_is_kept(port: int, text: str) -> None:
    try:
        service = parse_service(f"{port}:{text}")
    except SpecError:
        return
    assert as_the_agent_reads(str(service)) == service


def test_fields_become_what_the_agent_reads() -> None:
    cluster = Cluster.load({
        "name": "one",
        "artifacts": [{"name": "index", "command": "bash get.sh"}],
        "services": [
            {"port": 8000, "command": "bash serve.sh", "name": "search", "needs": ["index", "Qwen/Q"],
             "health": "/health", "restart": 5},
            {"port": 8001, "command": "bash judge.sh"},
        ],
        "models": ["Qwen/Q"],
    })  # fmt: skip
    assert [agent_service(each) for each in cluster.services] == [
        AgentService(8000, "bash serve.sh", "search", ("index", "Qwen/Q"), "/health", 5),
        AgentService(8001, "bash judge.sh"),
    ]
    assert [each.for_agent() for each in cluster.artifacts] == [AgentArtifact("index", "bash get.sh")]
    assert cluster.services == (Service.load(cluster.services[0].explicit_fields()), cluster.services[1])  # type: ignore[union-attr]
    assert cluster.artifacts == (Artifact(name="index", command="bash get.sh"),)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"services": [{"port": 8265, "command": "a"}]}, "port 8265 belongs to Ray's dashboard"),
        ({"services": [{"port": "8000", "command": "a"}]}, "'8000' is not a port"),
        ({"services": [{"port": 8000, "command": "a", "health": "health"}]}, "'health' is not an HTTP path"),
        ({"services": [{"port": 8000, "command": "a", "health": "/a b"}]}, "'/a b' is not an HTTP path"),
        ({"services": [{"port": 8000, "command": "a", "restart": -1}]}, "restart"),
        (
            {"services": [{"port": 8000, "command": "a", "name": "My Search"}]},
            "'My Search' is not the name of a service",
        ),
        ({"services": [{"port": 8000, "command": "a", "healt": "/"}]}, "unknown field 'healt'; did you mean 'health'"),
        ({"services": [{"port": 8000, "command": "a"}, "8000:b"]}, "two services have port 8000"),
        (
            {"services": [{"port": 8000, "command": "a", "name": "x"}, {"port": 8001, "command": "a", "name": "x"}]},
            "two services are called 'x'",
        ),
        ({"services": [{"port": 8000, "command": "a", "needs": ["index"]}]}, "service 8000 needs 'index', which is no"),
        ({"artifacts": ["index"]}, "'index' is not an artifact"),
        ({"artifacts": [{"name": "a/b", "command": "c"}]}, "'a/b' is not the name of an artifact"),
        ({"artifacts": [{"name": "a", "command": "c"}, {"name": "a", "command": "d"}]}, "a stands twice"),
    ],
)
def test_what_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Cluster.load({"name": "one", **fields})
