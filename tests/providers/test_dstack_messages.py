"""What a user of dstack is told when something goes wrong, costs money or is cut short; the real server answers."""

from pathlib import Path

import pytest
from dstack_hosts.fixtures import MISSING_IMAGE
from dstack_hosts.runs import until, write_task
from dstack_hosts.user import SHAPE, User

pytestmark = [pytest.mark.dstack, pytest.mark.ray]

ONE = ("--on", "dstack", "--set", "dstack.fleets=[mine]", "--nodes", "1", *SHAPE, "-y")
APART = """\
type: fleet
name: apart
ssh_config:
  user: root
  identity_file: {key}
  hosts: [192.0.2.1, 192.0.2.2]
"""


def test_an_image_that_cannot_be_pulled(user: User) -> None:
    """dstack would go on for a day; after two attempts it is stopped and the reason said."""
    words = [MISSING_IMAGE if word == "any" else word for word in ONE]
    done = user.types("cloudrl", "up", "nopull", *words, code=4)
    assert "the image cannot be pulled or started" in done.stdout
    assert MISSING_IMAGE in done.stdout
    assert user.lab.runs.status("nopull") == "terminated"


def test_a_secret_that_the_server_does_not_have(user: User) -> None:
    done = user.types("cloudrl", "up", "secretive", *ONE, "--secret", "NOT_THERE", code=2)
    assert "secretive.dstack.yml uses dstack secrets that project 'main' does not have: NOT_THERE" in done.stdout
    assert "dstack secret set NOT_THERE" in done.stdout
    assert user.lab.runs.status("secretive") == ""


def test_a_fleet_without_cluster_placement(user: User, tmp_path: Path) -> None:
    path = tmp_path / "apart.dstack.yml"
    path.write_text(APART.format(key=user.lab.fleet_key))
    user.types("dstack", "apply", "-y", "-d", "-f", path.name, cwd=tmp_path)
    try:
        words = ["2" if word == "1" else word.replace("[mine]", "[apart]") for word in ONE]
        done = user.types("cloudrl", "up", "scattered", *words, code=3)
        assert "placement: cluster, which apart does not have" in done.stdout
    finally:
        user.types("cloudrl", "fleet", "delete", "apart", "-y")


def test_no_fleet_at_all_for_a_run(user: User) -> None:
    """`run` rents in place of one's own machines only after a yes to that question; `-y` does not count."""
    # without user and an architecture the server asks an image registry
    image = ("--image", "any", "--set", "user=root", "--set", "cpu=x86:1..")
    done = user.types("cloudrl", "run", "grpo", "--cluster", "big", "--gpu", "H100:8", *image, "-y", code=3)
    assert "nothing was started: " in done.stdout
    assert "To rent: cloudrl fleet create big-fleet --gpu H100:8 --nodes 0..2" in done.stdout
    assert "big-fleet" not in user.types("cloudrl", "fleet", "list").stdout


def test_a_limit_of_the_cost_where_machines_cost_nothing(user: User) -> None:
    done = user.types("cloudrl", "up", "free", *ONE, "--max-cost", "5", code=2)
    assert "the machines that free would get cost nothing an hour" in done.stdout


def test_a_run_of_that_name_that_is_still_ending(user: User, tmp_path: Path) -> None:
    """It takes the server half a minute where it cannot reach the host."""
    task = write_task(tmp_path, "slow-end", ["echo up; sleep 300"], more="fleets: [mine]\n")
    user.lab.runs.apply(task)
    user.lab.runs.wait_for_line("slow-end", "up")
    [host] = user.hosts_of("slow-end")
    status = user.lab.runs.status
    host.cut()
    try:
        stop = {"runs_names": ["slow-end"], "abort": False}
        user.lab.server.call("/api/project/main/runs/stop", stop)  # `dstack stop` would wait for its end
        until(lambda: status("slow-end") != "running", 60, lambda: status("slow-end"))
        done = user.types("cloudrl", "up", "slow-end", *ONE, code=2)
        assert "a run 'slow-end' is still ending" in done.stdout
    finally:
        host.restore()
        until(lambda: status("slow-end") == "terminated", 90, lambda: status("slow-end"))


def test_log_quota(user: User, tmp_path: Path) -> None:
    """What the lab's server allows in an hour is 5 MB; our own agent never comes near."""
    task = write_task(tmp_path, "chatty", ["yes spam | head -c 8000000"], more="fleets: [mine]\n")
    user.lab.runs.apply(task)
    until(lambda: user.lab.runs.status("chatty") == "failed", 90, lambda: user.lab.runs.status("chatty"))
    done = user.types("cloudrl", "status", "chatty", code=4)
    assert "dstack ends a run whose node prints too much" in done.stdout


def test_ctrl_c_leaves_the_run_and_says_how_to_end_it(user: User) -> None:
    client = user.lab.popen("cloudrl", "up", "cut-short", *ONE)
    until(lambda: "rank 0" in client.output or client.returncode is not None, 60, lambda: client.output)
    client.interrupt()
    done = client.finish(30)
    assert done.returncode == 130, done.stdout
    assert "interrupted; cluster cut-short keeps running" in done.stdout
    assert "End it: cloudrl down cut-short" in done.stdout
    assert "is down" in user.types("cloudrl", "down", "cut-short", "-y").stdout
