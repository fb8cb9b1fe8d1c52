"""Two clusters on dstack at once, one by `cloudrl up`, one from Python: neither ever gets the other's jobs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from dstack_hosts.client import Client
from dstack_hosts.lab import Lab
from dstack_hosts.runs import ENDED, until
from dstack_hosts.user import PROBE, User

pytestmark = [pytest.mark.dstack, pytest.mark.ray]

PROGRAM = """
import pathlib, sys, time
import cloudrl

cluster = cloudrl.Cluster(
    name="second", nodes=2, image="any", user="root", cpu="x86:1..", memory="1GB..", disk="1GB..",
    dstack={"fleets": ["pair"]},
)
with cluster.up(on="dstack", on_progress=print) as ray:
    print("UP", ray.connection.ray_url, flush=True)
    job = ray.submit(cloudrl.recipe(sys.argv[1]), submission_id="from-python")
    for event in job.follow(lines=True):
        print(event, flush=True)
    print("FOLLOWED", flush=True)
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.2)
print("DOWN", flush=True)
"""


@pytest.fixture(scope="module")
def program(user: User, first: str, dstack_pair: Lab) -> Iterator[Client]:
    """The Python program, once its cluster is up and its job has ended; `first` is up, too."""
    user.types("cloudrl", "attach", first)
    recipe, end = user.recipe("probe", PROBE), dstack_pair.home / "end"
    client = user.lab.popen("python", "-c", PROGRAM, str(recipe), str(end))
    try:
        until(lambda: "FOLLOWED" in client.output or client.returncode, 400, lambda: client.output[-2000:])
        assert "FOLLOWED" in client.output, client.output[-2000:]
        yield client
    finally:
        client.close()
        end.unlink(missing_ok=True)
        if dstack_pair.runs.status("second") not in (*ENDED, ""):
            user.types("cloudrl", "down", "second", "-y")


def kept(user: User, name: str) -> Path:
    """The file in which a tunnel's daemon says its ports."""
    return user.lab.home / f".cloudrl/dstack/main/{name}/tunnel/tunnel.json"


def ports(user: User, name: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(kept(user, name).read_text())["ports"]
    return found


def test_the_second_takes_other_ports_and_says_so(user: User, first: str, program: Client) -> None:
    assert "nodes 2" in program.output
    assert ports(user, first) == {"8265": 8265, "8266": 8266}
    url = f"http://127.0.0.1:{ports(user, 'second')['8265']}"
    assert f"UP {url}" in program.output
    assert not set(ports(user, first).values()) & set(ports(user, "second").values())
    said = user.types("cloudrl", "attach", "second").stdout
    assert f"the dashboard of second is at {url}, not at port 8265" in said.replace("localhost", "127.0.0.1")


def test_swapped_ports_are_refused_and_the_message_leads_back(user: User, first: str, program: Client) -> None:
    """The tunnel of the first cluster answers where that of the second is recorded: both ports, or one of them."""
    del program
    before = {name: user.jobs(name) for name in (first, "second")}
    path, recipe = kept(user, "second"), user.recipe("probe", PROBE)
    own = json.loads(path.read_text())
    try:
        for taken in (("8265",), ("8266",), ("8265", "8266")):
            theirs = {port: ports(user, first)[port] for port in taken}
            path.write_text(json.dumps({**own, "ports": {**own["ports"], **theirs}}))
            words = ("cloudrl", "submit", str(recipe), "--cluster", "second", "--submission-id", "astray")
            said = user.types(*words, code=5).stdout
            agent = "refuses the token: another cluster may have taken this port"
            assert (agent if "8266" in taken else "refuses the token (403)") in said
            assert "cloudrl detach second; cloudrl attach second" in said
    finally:
        user.types("cloudrl", "detach", "second")
        user.types("cloudrl", "attach", "second")
    assert {name: user.jobs(name) for name in (first, "second")} == before
    assert "nodes 2" in user.probe("second", "again")


def test_the_end_of_the_block_ends_the_second_alone(user: User, first: str, program: Client) -> None:
    (user.lab.home / "end").touch()
    done = program.finish(90)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("DOWN\n")
    assert user.lab.runs.status("second") == "terminated"
    assert [host.processes(containers_only=True) for host in user.lab.hosts[:2]] == [[], []]
    user.wait_ready(first)
