"""What the asynchronous modes of verl need on CPUs: weights over gloo, and copies of a model that stay as they are."""

import json
import os
from pathlib import Path

import pytest
from verl_forks import Script

pytestmark = pytest.mark.verl

PROBES = Path(__file__).parent / "probes"
KEEPING = """
import json
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from verl.utils import fsdp_utils
from cloudrl.verl_cpu import engine

torch.distributed.init_process_group("gloo", init_method="FILE", rank=0, world_size=1)
model = torch.nn.Linear(2, 2)
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
saved, _ = fsdp_utils.fsdp2_sharded_save_to_cpu(model)
before = saved["weight"][0].clone()
with torch.no_grad():
    model.weight.mul_(2)
print(json.dumps([torch.equal(saved["weight"][0], before), torch.equal(model.weight.full_tensor(), before)]))
"""


def test_all_weights_get_to_all_rollout_workers_at_each_update() -> None:
    arrived = json.loads(Script(PROBES / "weights.py", environ=os.environ).end()[-1])
    assert arrived == [[worker, update, True] for worker in (0, 1) for update in (1, 2)]


def test_a_model_that_was_kept_does_not_change_with_training(tmp_path: Path) -> None:
    script = KEEPING.replace("FILE", (tmp_path / "rendezvous").as_uri())
    environ = {**os.environ, "VERL_PLATFORM": "cpu"}
    assert json.loads(Script(script, environ=environ).end()[-1]) == [True, False]
