"""How rollout and training of an asynchronous job keep pace."""

from typing import Any

import pytest

from cloudrl.hangs.rollout import Unfinished
from cloudrl.protocol.report import GpuUsage, Usage
from cloudrl.verl.balance import ROLLOUT, TRAINING, Balance, balance, pools_of
from cloudrl.verl.metrics import Step, parse_step

LINE = (
    "step:{} - training/off_policy/trajectory_staleness/mean:np.float64({}) - "
    "training/off_policy/trajectory_staleness/max:np.int64({}) - timing_s/gen:{} - timing_s/update_weights:1.0 - "
    "timing_s/switch_wait:2.0 - timing_s/switch_to_trainer:1.0 - timing_s/update_actor:4.0 - timing_s/step:10.0"
)
"""As verl 0.9.1 prints it, less the other metrics."""
PROMPTS = Unfinished(pending=1, running=3, finished=2, failure=0)
POOLS = {0: TRAINING, 1: TRAINING, 2: ROLLOUT}


def steps() -> list[Step]:
    found = [parse_step(LINE.format(1, 1.0, 1, 1.0)), parse_step(LINE.format(2, 2.0, 3, 3.0))]
    return [step for step in found if step is not None]


def busy(*percents: float | None) -> list[Usage]:
    return [Usage(1.0, gpus=tuple(GpuUsage(index, utilization_percent=each) for index, each in enumerate(percents)))]


def test_with_nodes_of_its_own_training_waits_for_the_rollout() -> None:
    usage = {0: busy(80.0, 60.0), 1: busy(40.0, None), 2: busy(90.0), 3: busy(1.0)}
    found = balance("separate_async", steps(), PROMPTS, POOLS, usage)
    assert found is not None
    assert (found.age, found.oldest) == (1.5, 3.0)
    assert found.waiting == pytest.approx((3.0 + 5.0) / 20.0)  # lent to the rollout, GPUs do not wait
    assert found.idle == {TRAINING: pytest.approx(0.4), ROLLOUT: pytest.approx(0.1)}
    assert found.rows == (
        ("weights behind an answer", "1.5 steps old, at most 3"),
        ("prompts when training last waited", "4 under way, 2 ready"),
        ("training waits for the rollout", "40% of the time"),
        ("GPUs of the training nodes idle", "40% of the time"),
        ("GPUs of the rollout nodes idle", "10% of the time"),
    )


def test_on_the_same_gpus_there_is_no_waiting_to_tell_from_the_rollout() -> None:
    found = balance("colocate_async", steps(), None, POOLS, {0: busy(80.0)})
    assert found == Balance(age=1.5, oldest=3.0)


@pytest.mark.parametrize("mode", ["", "sync"])
def test_a_step_that_waits_for_its_own_answers_has_no_balance(mode: str) -> None:
    assert balance(mode, steps(), PROMPTS, POOLS, {}) is None


def test_before_the_first_step_there_is_nothing_to_say() -> None:
    found = balance("separate_async", [], None, {}, {})
    assert found is not None
    assert found.rows == ()


def actor(node: str | None, class_name: str, name: str = "") -> dict[str, Any]:
    return {"node_id": node, "class_name": class_name, "name": name}


TRAINS = actor("a", "WorkerDict", "xkq1actor_rollout_WorkerDict_0:0")
GENERATES = actor("b", "CheckpointEngineWorker", "rollout_standalone_1CheckpointEngineWorker_0:0")


@pytest.mark.parametrize(
    ("actors", "pools"),
    [
        ([TRAINS, GENERATES, actor("c", "AgentLoopWorkerTQ")], {"a": TRAINING, "b": ROLLOUT}),
        ([TRAINS, GENERATES, {**TRAINS, "node_id": "b"}], {}),  # one node for both
        ([TRAINS, GENERATES, {**GENERATES, "node_id": "a"}], {"a": TRAINING, "b": ROLLOUT}),
        ([TRAINS, {**GENERATES, "node_id": None}, {}], {}),
        ([TRAINS, actor("b", "CheckpointEngineWorker", "rollout_reward_standalone_0CheckpointEngineWorker_0:0")], {}),
    ],
)
def test_the_pool_of_a_node_is_seen_in_its_actors(actors: list[dict[str, Any]], pools: dict[str, str]) -> None:
    assert pools_of(actors) == pools
