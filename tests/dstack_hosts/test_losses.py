"""Power, cables and the server fail, and the real server does what it does then."""

from __future__ import annotations

import pytest

from dstack_hosts.runs import until
from dstack_hosts.tasks import write_task

pytestmark = [pytest.mark.dstack, pytest.mark.root]

RETRY = "retry:\n  on_events: [no-capacity, interruption, error]\n  duration: 1h\nstartup_order: any\n"
COUNT = "md5sum ~/.ssh/dstack_job; i=0; while true; do echo line $i; i=$((i + 1)); sleep 0.2; done"


def _key(log):
    return next(line.split()[0] for line in log.splitlines() if "dstack_job" in line)


def _lines(log):
    return [int(line.split()[1]) for line in log.splitlines() if line.startswith("line ")]


@pytest.mark.slow  # tests/providers/test_dstack_losses.py has it with a cluster on top
def test_a_host_without_power_brings_the_run_up_again_with_all_nodes_and_a_new_key(lab, pair, tmp_path):
    lab.runs.apply(write_task(tmp_path, "lost", [COUNT], nodes=2, more=RETRY))
    for rank in (0, 1):
        lab.runs.wait_for_line("lost", "line 5", rank=rank)
    first = [job.id for job in lab.runs.submissions("lost")]
    key = _key(lab.runs.log("lost"))
    pair[1].kill()
    until(lambda: lab.runs.status("lost") == "pending", 90, lambda: lab.runs.status("lost"))
    pair[1].start()
    until(
        lambda: lab.runs.attempts("lost") > 1 and lab.runs.status("lost") == "running",
        90,
        lambda: lab.runs.status("lost"),
    )
    for rank in (0, 1):
        lab.runs.wait_for_line("lost", "line 5", rank=rank)
    second = [job.id for job in lab.runs.submissions("lost")]
    assert not set(first) & set(second)
    assert _key(lab.runs.log("lost", 0)) == _key(lab.runs.log("lost", 1)) != key
    assert lab.runs.stop("lost") == "terminated"


@pytest.mark.slow  # tests/providers/test_dstack_cut.py
def test_a_short_cut_of_a_cable_and_a_restart_of_the_server_lose_no_line(lab, pair, tmp_path):
    lab.runs.apply(write_task(tmp_path, "cut", [COUNT], nodes=2, more=RETRY))
    lab.runs.wait_for_line("cut", "line 5", rank=1)
    address = lab.runs.submissions("cut")[1].address
    host = next(host for host in pair if host.address == address)
    seen = _lines(lab.runs.log("cut", 1))[-1]
    host.cut()
    lab.server.stop()
    host.restore()
    lab.server.start()
    lab.runs.wait_for_line("cut", f"line {seen + 40}", rank=1)
    lines = _lines(lab.runs.log("cut", 1))
    assert lines == list(range(len(lines)))
    assert lab.runs.attempts("cut") == 1
    assert lab.runs.stop("cut") == "terminated"


def test_the_shim_comes_back_and_knows_its_containers(lab, pair, tmp_path):
    lab.runs.apply(write_task(tmp_path, "shim", [COUNT]))
    lab.runs.wait_for_line("shim", "line 1")
    (job,) = lab.runs.submissions("shim")
    host = next(host for host in pair if host.address == job.address)
    assert host.run("systemctl", "restart", "dstack-shim").returncode == 0
    lines = len(_lines(lab.runs.log("shim")))
    until(lambda: len(_lines(lab.runs.log("shim"))) > lines + 5, 20, lambda: lab.runs.log("shim"))
    assert lab.runs.attempts("shim") == 1
    assert lab.runs.stop("shim") == "terminated"
