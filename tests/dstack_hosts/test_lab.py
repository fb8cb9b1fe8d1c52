"""The real server and CLI on stand-in hosts: what a task sees, prints and ends with."""

from __future__ import annotations

import json
import time
import urllib.request
from urllib.error import URLError

import pytest
import websocket
from patience import SLOWER

from dstack_hosts import namespaces
from dstack_hosts.fixtures import MISSING_IMAGE
from dstack_hosts.runs import until, write_task

pytestmark = [pytest.mark.dstack, pytest.mark.root]

VIEW = """exec python3 -c '
import json, os, pathlib, socket, sys
key = pathlib.Path.home() / ".ssh/dstack_job"
names = ("RUN_NAME", "NODES_IPS", "MASTER_NODE_IP", "NODE_RANK", "NODES_NUM", "GPUS_PER_NODE")
print("VIEW " + json.dumps({
    "variables": {name: os.environ["DSTACK_" + name] for name in names},
    "odd": os.environ["ODD"], "key": key.read_text() if key.exists() else "", "host": socket.gethostname(),
    "tty": sys.stdout.isatty(), "leader": os.getsid(0) == os.getppid() or os.getsid(0) == os.getpid(),
    "file": pathlib.Path("/opt/mine/renamed.txt").read_text(), "folder": sorted(os.listdir("/opt/folder")),
    "home": sorted(os.listdir("/root")), "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "can": pathlib.Path("/proc/self/status").read_text().split("CapBnd:")[1].split()[0],
    "python": sys.prefix, "own": socket.gethostbyname(socket.gethostname()),
}))
open("/checkpoints/rank-" + os.environ["DSTACK_NODE_RANK"], "w").write("kept")
'"""

DOCKERS_CAPABILITIES = 0xA80425FB  # as `docker run debian grep CapBnd /proc/self/status` says

DEAF = """exec python3 -uc '
import os, signal, time
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("on", os.getuid(), os.getgid(), os.getgroups(), os.environ["HOME"])
time.sleep(90)
'"""


def view(log):
    """What VIEW has printed; the terminal has broken no line."""
    return json.loads(log.split("VIEW ", 1)[1].splitlines()[0])


def test_the_fleet_is_idle_and_nothing_of_it_is_on_the_machine(lab):
    listed = lab.run("dstack", "fleet").stdout
    assert listed.count("idle") >= 2, listed
    with pytest.raises(URLError):  # the server answers inside the lab only
        urllib.request.urlopen(lab.server.url + "/healthcheck", timeout=2)


def test_two_nodes_see_what_dstack_promises(lab, pair, tmp_path):
    (tmp_path / "mine.txt").write_text("hello")
    (tmp_path / "folder/inner").mkdir(parents=True)
    (tmp_path / "folder/a.txt").touch()
    more = (
        "env:\n  ODD: '${HOME} $$'\nvolumes:\n  - /checkpoints:/checkpoints\n"
        "files:\n  - mine.txt:/opt/mine/renamed.txt\n  - folder:/opt/folder\n"
    )
    lab.runs.apply(write_task(tmp_path, "two", ["true", VIEW], nodes=2, more=more))
    lab.runs.wait("two", "done")
    views = [view(lab.runs.log("two", rank)) for rank in (0, 1)]
    jobs = lab.runs.submissions("two")
    addresses = [job.address for job in jobs]
    for rank, seen in enumerate(views):
        variables = seen["variables"]
        assert variables["NODE_RANK"] == str(rank)
        assert variables["NODES_IPS"] == "\n".join(addresses)
        assert variables["MASTER_NODE_IP"] == addresses[0]
        assert (variables["RUN_NAME"], variables["NODES_NUM"], variables["GPUS_PER_NODE"]) == ("two", "2", "0")
        assert (seen["file"], seen["folder"]) == ("hello", ["a.txt", "inner"])
        assert seen["odd"] == "${HOME} $$"
        assert (seen["tty"], seen["leader"]) == (True, True)
        assert seen["shm"] == 64 << 20  # Docker's, since the task names none
        assert int(seen["can"], 16) == DOCKERS_CAPABILITIES
        assert seen["own"] == addresses[rank]  # not a name server that cannot be reached: Ray asks, 5 s each time
        assert ".ray" not in seen["home"]
        assert ".bashrc" not in seen["home"]
    assert views[0]["key"].startswith("-----BEGIN")
    assert views[0]["key"] == views[1]["key"]
    assert [job.exit_status for job in jobs] == [0, 0]
    for rank, address in enumerate(addresses):
        host = next(host for host in pair if host.address == address)
        assert host.name == views[rank]["host"]
        assert host.path(f"/checkpoints/rank-{rank}").read_text() == "kept"
        assert not host.path("/root/.ssh/dstack_job").exists()  # the container's home is its own


def test_one_node_has_no_shared_key_and_its_exit_status_is_told(lab, pair, tmp_path):
    """And what is privileged may mount."""
    command = "test ! -e ~/.ssh/dstack_job && mount -t tmpfs none /mnt && exit 7"
    lab.runs.apply(write_task(tmp_path, "one", [command], more="privileged: true\n"))
    lab.runs.wait("one", "failed")
    (job,) = lab.runs.submissions("one")
    assert (job.status, job.exit_status, job.reason) == ("failed", 7, "container_exited_with_error")


def test_an_image_that_cannot_be_pulled_is_told_as_that(lab, pair, tmp_path):
    lab.runs.apply(write_task(tmp_path, "pull", ["true"], image=MISSING_IMAGE))
    lab.runs.wait("pull", "failed")
    (job,) = lab.runs.submissions("pull")
    assert job.reason == "creating_container_error"
    assert f"manifest for {MISSING_IMAGE} not found" in (job.message or "")


def test_an_entry_above_2_mib_is_rejected_by_the_server(lab, tmp_path):
    (tmp_path / "big.bin").write_bytes(bytes(range(256)) * (3 << 12))
    path = write_task(tmp_path, "big", ["true"], more="files:\n  - big.bin:/opt/big.bin\n")
    done = lab.runs.apply(path, check=False)
    assert done.returncode == 1
    assert "exceeds the limit of 2.0MiB" in " ".join(done.stdout.split())
    assert lab.runs.status("big") == ""


def test_a_variable_that_is_not_set_fails_before_anything_runs(lab, tmp_path):
    path = write_task(tmp_path, "unset", ["true"], more="env:\n  - WANDB_API_KEY\n")
    done = lab.runs.apply(path, check=False)
    assert done.returncode == 1
    assert "WANDB_API_KEY" in done.stdout


def test_an_attached_client_gets_the_ports_the_log_and_a_shell(lab, pair, tmp_path):
    server = "exec python3 -um http.server 8265 --bind 127.0.0.1 --directory /opt"
    lab.runs.apply(write_task(tmp_path, "web", ["echo 'first line'", server], more="ports:\n  - 8265\n"))
    lab.runs.wait("web", "running")
    client = lab.popen("dstack", "attach", "--logs", "web")
    with lab.network():
        until(lambda: _answers("http://127.0.0.1:8265/"), 40, lambda: client.output)
    until(lambda: "first line" in client.output, 20, lambda: client.output)
    control = lab.run("ssh", "-F", str(lab.home / ".dstack/ssh/config"), "web", "hostname; cat /dstack/profile")
    assert control.returncode == 0, control.stdout
    assert "node0" in control.stdout or "node1" in control.stdout
    assert "export DSTACK_RUN_NAME='web'" in control.stdout
    client.interrupt()
    client.finish(20)
    assert lab.runs.status("web") == "running"
    assert lab.runs.stop("web") == "terminated"
    assert "^C" in lab.runs.log("web")  # the interrupt came through the terminal


def test_the_stream_starts_where_a_client_asks(lab, pair, tmp_path):
    lab.runs.apply(write_task(tmp_path, "stream", ["printf 'x\\ra\\033[1mb\\n'; exec sleep 60"]))
    assert lab.runs.wait_for_line("stream", "ab\n") == "ab\n"
    (job,) = lab.runs.submissions("stream")
    host = next(host for host in pair if host.address == job.address)
    with namespaces.network_of(host.pid):
        stream = websocket.create_connection("ws://127.0.0.1:10999/logs_ws?start_time=", timeout=10)
        assert stream.recv() == b"x\ra\x1b[1mb\r\n"
        later = websocket.create_connection("ws://127.0.0.1:10999/logs_ws?start_time=2100-01-01T00:00:00Z", timeout=10)
        later.settimeout(0.5)
        with pytest.raises(websocket.WebSocketTimeoutException):
            later.recv()
        later.close()
    assert lab.runs.stop("stream") == "terminated"
    stream.close()


def test_a_stopped_job_that_does_not_listen_is_killed_after_ten_seconds(lab, pair, tmp_path):
    lab.runs.apply(write_task(tmp_path, "deaf", [DEAF], user="'12345:50'"))
    assert "on 12345 50 [50] /\n" in lab.runs.wait_for_line("deaf", "on")  # a user that the image does not know
    start = time.monotonic()
    assert lab.runs.stop("deaf") == "terminated"
    assert 9 < time.monotonic() - start < 25 * SLOWER


def _answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False
