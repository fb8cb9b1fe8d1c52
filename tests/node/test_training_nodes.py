"""Training on the nodes that a resume needs: three Ray nodes on this machine, and verl's own resource pools."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from patience import SLOWER

from cloudrl.node import main_on_head
from cloudrl.protocol.folders import ON_HEAD, TRAINING_NODES

pytestmark = [pytest.mark.ray, pytest.mark.verl]

HEAD, WORKERS = "127.0.0.4", ("127.0.0.2", "127.0.0.3")  # verl counts the head last
PROGRAM = """
import json
import os

import ray


@ray.remote
class TaskRunnerV1:
    def run(self, config):
        from verl.single_controller.ray import base

        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}

        def nodes(name, size):
            pool = base.RayResourcePool([1] * size, max_colocate_count=1, name_prefix=name)
            groups = base.sort_placement_group_by_node_ip(pool.get_placement_groups())  # as RayWorkerGroup has them
            tables = [ray._private.state.state.placement_group_table(group.id) for group in groups]
            return [addresses[table["bundles_to_node_id"][0]] for table in tables]

        where = {"controller": [ray.util.get_node_ip_address()], "training": nodes("global_pool", 2)}
        return type(self).__name__, {**where, "reward": nodes("reward_pool", 1)}


def main():
    ray.init(address=os.environ["CLUSTER"], log_to_driver=False)
    print(json.dumps(ray.get(TaskRunnerV1.remote().run.remote(None))))
"""
CLUSTER = f"""
import os
import subprocess
import sys

from ray.cluster_utils import Cluster

shape = dict(num_cpus=2, num_gpus=1, object_store_memory=80_000_000)
cluster = Cluster(True, head_node_args=dict(shape, node_ip_address="{HEAD}", include_dashboard=False))
try:
    for address in {WORKERS}:
        cluster.add_node(node_ip_address=address, **shape)
    command = [sys.executable, "-m", "{ON_HEAD}", "program"]
    subprocess.run(command, env=dict(os.environ, CLUSTER=cluster.address), check=True)
finally:
    cluster.shutdown()
"""


def test_ranks_run_on_the_nodes_that_have_their_files(tmp_path: Path) -> None:
    """In an order that verl, which counts by address, would not choose, and without the node that comes first."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / f"{ON_HEAD}.py").write_text(Path(main_on_head.__file__).read_text())
    sockets = tempfile.mkdtemp(prefix="cr", dir="/tmp")  # short: Ray's sockets are below it
    env = {
        **os.environ, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": sockets, "PYTHONPATH": str(tmp_path),
        TRAINING_NODES: f"{HEAD},{WORKERS[1]}",
    }  # fmt: skip
    try:
        ended = subprocess.run(
            [sys.executable, "-c", CLUSTER], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240 * SLOWER
        )
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    name, where = json.loads(ended.stdout.splitlines()[-1])
    assert name == "TaskRunnerV1"  # by which its log is found
    assert where == {"controller": [HEAD], "training": [HEAD, WORKERS[1]], "reward": [WORKERS[0]]}
