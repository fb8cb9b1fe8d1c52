"""The other ranks of a training wait for one that stands in a debugger."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudrl.node.stops import Stops

pytestmark = pytest.mark.verl

RANK = """
import datetime, sys, time
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

rank, place = int(sys.argv[1]), sys.argv[2]
print([dist.distributed_c10d._get_default_timeout(name).days for name in ("gloo", "nccl")])
short = datetime.timedelta(seconds=2)
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2, timeout=short)
other = dist.new_group([0, 1], timeout=short)
dist.barrier()
if rank == 1:
    time.sleep(4)  # a person looks at it
dist.barrier(other)
dist.barrier()
print("both are there")
"""


@pytest.mark.parametrize("debugger", ["debugpy", pytest.param("", marks=pytest.mark.slow)])
def test_collectives_wait_for_a_stopped_rank(tmp_path: Path, debugger: str):
    variables = Stops(tmp_path, 0).prepare({})
    env = {**os.environ, **variables, "CLOUDRL_DEBUGGER": debugger}
    env["PYTHONPATH"] = variables["CLOUDRL_DEBUGGER_PYTHONPATH"]
    env["GLOO_SOCKET_IFNAME"] = "lo"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    said = [rank.communicate(timeout=120) for rank in ranks]
    if debugger:
        assert [out for out, _ in said] == ["[7, 7]\nboth are there\n"] * 2, said
    else:  # so it is without the hook
        assert ranks[0].returncode != 0
        assert "imed out" in said[0][1]
