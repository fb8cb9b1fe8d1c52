"""The shim fails, and the real server does what it does then. Hosts, cables and server: tests/providers."""

from __future__ import annotations

import pytest

from dstack_hosts.runs import until, write_task

pytestmark = [pytest.mark.dstack, pytest.mark.root]

COUNT = "i=0; while true; do echo line $i; i=$((i + 1)); sleep 0.6; done"


def _lines(log):
    return [int(line.split()[1]) for line in log.splitlines() if line.startswith("line ")]


def test_the_shim_comes_back_and_knows_its_containers(lab, pair, tmp_path):
    lab.runs.apply(write_task(tmp_path, "shim", [COUNT]))
    lab.runs.wait_for_line("shim", "line 1")
    (job,) = lab.runs.submissions("shim")
    host = next(host for host in pair if host.address == job.address)
    assert host.run("systemctl", "restart", "dstack-shim").returncode == 0
    lines = len(_lines(lab.runs.log("shim")))
    until(lambda: len(_lines(lab.runs.log("shim"))) > lines + 2, 20, lambda: lab.runs.log("shim"))
    assert lab.runs.attempts("shim") == 1
    assert lab.runs.stop("shim") == "terminated"
