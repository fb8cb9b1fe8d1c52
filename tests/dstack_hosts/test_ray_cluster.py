"""A raw `dstack apply` of the agent on two hosts, with CPUs for GPUs: ready, attached, stopped."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request

import pytest

from dstack_hosts.runs import until
from dstack_hosts.tasks import write_task

pytestmark = [pytest.mark.dstack, pytest.mark.root, pytest.mark.ray]

AGENT = """exec python3 /opt/cloudrl/cloudrl-node.pyz run \\
  --device cpu \\
  --gpus-per-node 1 \\
  --cpus-per-node 4 \\
  --data addition \\
  --model tiny-qwen2 \\
  --checkpoints /checkpoints"""

MORE = """\
env:
  PYTHONUNBUFFERED: '1'
files:
  - cloudrl-node.pyz:/opt/cloudrl/cloudrl-node.pyz
ports:
  - 8265
  - 8266
volumes:
  - /checkpoints:/checkpoints
startup_order: any
stop_criteria: master-done
"""


def _status(url):
    try:
        with urllib.request.urlopen(url, timeout=3) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def test_the_agent_forms_a_cluster_over_the_hosts_network(lab, pair, tmp_path, repository):
    shutil.copy(repository / "tasks/cloudrl-node.pyz", tmp_path)
    lab.runs.apply(write_task(tmp_path, "ray-cluster", [AGENT], nodes=2, more=MORE))
    log = lab.runs.wait_for_line("ray-cluster", "READY", timeout_s=240)
    assert "2 nodes" in log
    client = lab.popen("dstack", "attach", "ray-cluster")
    with lab.network():
        for port in (8265, 8266):  # both want the run's token, which a client reads over ssh
            until(
                lambda port=port: _status(f"http://127.0.0.1:{port}/api/version") == 401,
                60,
                lambda: client.output,
            )
    client.interrupt()
    client.finish(30)
    assert lab.runs.stop("ray-cluster") in ("terminated", "done")
    assert "ended by SIGINT" in lab.runs.log("ray-cluster")
