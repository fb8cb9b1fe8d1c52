"""Provider `dstack`, with the real server, CLI and ssh, on stand-in hosts. Commands are typed as a user types them."""

import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from dstack_hosts.fixtures import fleet_words
from dstack_hosts.runs import until
from dstack_hosts.user import FILES, PROBE, SHAPE, User

from cloudrl.transport import RayClient

pytestmark = [pytest.mark.dstack, pytest.mark.ray]


# A Hugging Face Hub that has no such repository, and says so as the real one does.
HUB = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

HTTPServer(("10.77.0.1", 8444), Hub).serve_forever()
"""

# Reads the data set and the model where the driver runs.
READER = (
    "import json, pathlib, pyarrow.parquet, ray, sys; given = dict(word.split('=', 1) for word in sys.argv[1:]); "
    "rows = pyarrow.parquet.read_table(given['data.train_files']).num_rows; "
    "config = json.loads(pathlib.Path(given['actor_rollout_ref.model.path'], 'config.json').read_text()); "
    "ray.init(log_to_driver=False); "
    "print(f'on {ray.util.get_node_ip_address()}: {rows} rows, {config[\"model_type\"]}')"
)


def status_of(url: str) -> int:
    """The HTTP status that a URL answers with; 0 without an answer."""
    try:
        with urllib.request.urlopen(url, timeout=3) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def dstack_would_take(*ports: int) -> bool:
    """Whether `dstack attach` finds these ports free: unlike ssh it minds the last tunnel.s TIME_WAIT."""
    for port in ports:
        with socket.socket() as trial:
            try:
                trial.bind(("", port))
            except OSError:
                return False
    return True


class TestFleets:
    def test_listed(self, user: User) -> None:
        fleets = json.loads(user.types("cloudrl", "fleet", "list", "--json").stdout)
        [mine] = [fleet for fleet in fleets if fleet["name"] == "mine"]
        assert [each["status"] for each in mine["instances"]] == ["idle", "idle", "idle"]
        assert mine["is_ssh"] is True

    def test_made_again_without_harm(self, user: User) -> None:
        words = fleet_words(user.lab)
        assert "already exists as declared" in user.types("cloudrl", "fleet", "create", "mine", *words).stdout

    def test_not_there(self, user: User) -> None:
        done = user.types("cloudrl", "fleet", "delete", "mime", "-y", code=2)
        assert "no fleet 'mime'; did you mean 'mine'" in done.stdout

    def test_not_deleted_when_nobody_can_be_asked(self, user: User) -> None:
        assert "Answer yes with -y" in user.types("cloudrl", "fleet", "delete", "mine", code=2).stdout
        assert "mine" in user.types("cloudrl", "fleet", "list").stdout

    def test_no_backend_for_it(self, user: User) -> None:
        done = user.types("cloudrl", "fleet", "create", "cloud", "--gpu", "H100:8", "-y", code=3)
        assert "no backend of project 'main' offers such a machine" in done.stdout

    def test_a_key_that_is_not_there(self, user: User) -> None:
        words = ["--ssh-host", "10.0.0.9", "--ssh-user", "me", "--ssh-key", "/nowhere/key"]
        done = user.types("cloudrl", "fleet", "create", "x1", *words, code=2)
        assert "SSH key /nowhere/key: No such file" in done.stdout


def test_volumes_need_a_backend(user: User) -> None:
    words = ["--backend", "aws", "--region", "us-east-1", "--size", "100GB", "-y"]
    assert "dstack:" in user.types("cloudrl", "volume", "create", "ckpt", *words, code=2).stdout
    assert "no network volume" in user.types("cloudrl", "volume", "list").stdout


def test_a_cluster_that_no_fleet_can_hold(user: User) -> None:
    words = [word.replace("memory=1GB..", "memory=9000GB..") for word in SHAPE]
    done = user.types("cloudrl", "up", "big", "--on", "dstack", "--set", "dstack.fleets=[mine]", *words, "-y", code=3)
    assert "no fleet has or can get such a machine" in done.stdout


def test_a_model_that_does_not_exist_ends_the_run_with_the_reason(user: User) -> None:
    hub = user.lab.popen("python", "-c", HUB)
    endpoint = ("--env", "HF_ENDPOINT=http://10.77.0.1:8444")
    words = ("--set", "dstack.fleets=[mine]", "--nodes", "2", *SHAPE, "--model", "nobody/nothing", "-y")
    try:
        done = user.types("cloudrl", "up", "wrong", "--on", "dstack", *words, *endpoint, code=4, timeout_s=400)
    finally:
        hub.close()
    assert "model nobody/nothing: RepositoryNotFoundError" in done.stdout
    assert user.lab.runs.attempts("wrong") <= 2


@pytest.mark.slow  # all of the lab's clusters of one node in test_dstack_messages.py end before READY
def test_one_node(user: User) -> None:
    """dstack makes no shared key for it: the agent's own random one is read through ssh."""
    assert "READY: solo with 1 node" in user.up("solo", "mine", nodes=1)
    assert "nodes 1" in user.probe("solo", "alone")
    user.types("cloudrl", "down", "solo", "-y")


@pytest.fixture(scope="class")
def raw(user: User, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A READY cluster of two nodes by `dstack apply -f` of the file that `cloudrl task create` writes."""
    folder = tmp_path_factory.mktemp("raw")
    words = ("--set", "dstack.fleets=[mine]", "--nodes", "2", *SHAPE, *FILES)
    user.types("cloudrl", "task", "create", "raw", *words, cwd=folder)
    user.lab.runs.apply(folder / "raw.dstack.yml")
    user.lab.runs.wait_for_line("raw", "READY", timeout_s=300)
    yield "raw"
    user.lab.runs.stop("raw")


class TestARawApply:
    def test_attached_by_dstack(self, user: User, raw: str) -> None:
        with user.lab.network():
            until(lambda: dstack_would_take(8265, 8266), 90, lambda: "8265 and 8266 are still in TIME_WAIT")
        client = user.lab.popen("dstack", "attach", raw)
        with user.lab.network():
            for port in (8265, 8266):  # both want the run's token, which a client reads over ssh
                url = f"http://127.0.0.1:{port}/api/version"
                until(lambda url=url: status_of(url) == 401, 60, lambda: client.output)  # type: ignore[misc]
        client.interrupt()
        client.finish(30)

    def test_submit_beside_it(self, user: User, raw: str) -> None:
        """In another terminal, which finds the only cluster by itself."""
        user.types("cloudrl", "submit", str(user.recipe("probe", PROBE)), "--submission-id", "beside")
        assert "nodes 2" in user.types("cloudrl", "jobs", "logs", "beside").stdout

    def test_a_driver_on_rank_1(self, user: User, raw: str) -> None:
        """As Ray places it when the head is full. What a recipe fills in is there, too."""
        worker = user.hosts_of(raw)[1]
        recipe = user.recipe("reader", READER, reads=True)
        words = ("--submission-id", "raw-1", "--cluster", raw)
        shown = user.types("cloudrl", "submit", str(recipe), *words, "--dry-run", "--json").stdout
        request = json.JSONDecoder().raw_decode(shown[shown.index('{\n  "entrypoint"') :])[0]
        env = user.types("cloudrl", "env", "--cluster", raw).stdout  # its tunnel stays
        url, token = (re.search(rf"{name}=(\S+)", env)[1] for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"))  # type: ignore[index]
        with user.lab.network():
            ray = RayClient(url, token)
            ray.submit_job({**request, "entrypoint_resources": {f"node:{worker.address}": 0.001}})
        done = user.types("cloudrl", "jobs", "logs", "-f", "raw-1", "--cluster", raw)
        assert f"on {worker.address}: 2400 rows, qwen2" in done.stdout

    def test_down_leaves_nothing_running(self, user: User, raw: str) -> None:
        hosts = user.hosts_of(raw)
        user.types("cloudrl", "down", raw, "-y")
        assert user.lab.runs.status(raw) == "terminated"
        assert [host.processes(containers_only=True) for host in hosts] == [[], []]
        assert "ended by SIGINT" in user.lab.runs.log(raw)
        assert f"no run {raw!r}" not in user.types("cloudrl", "status", raw).stdout
