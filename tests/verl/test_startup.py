"""Stages of a start, from the lines of verl 0.9.1 on two nodes without GPUs, shortened."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.protocol.job_phases import JobPhase
from cloudrl.verl.startup import Starting, StartReader, stages

TASK = "\x1b[36m(TaskRunnerV1 pid=22420)\x1b[0m "
LINES = [
    "2026-11-26 08:19:44,757\tINFO job_manager.py:581 -- Runtime env is setting up.",
    "Running entrypoint for job run-1: python3 -m verl.trainer.main_ppo",
    "ray init kwargs: {'num_cpus': None}",
    f"{TASK}Using dataset class: RLHFDataset",
    f"{TASK}Using dataset class: RLHFDataset",
    f"{TASK}INFO:2026-11-26 08:21:48,688:worker group kwargs: {{'device_name': 'cpu'}}",
    f"{TASK}INFO:2026-11-26 08:22:06,285:create worker group dict_keys(['actor_rollout'])",
    "Loading weights:   0%|          | 0/27 [00:00<?, ?it/s]",
    f"{TASK}INFO:2026-11-26 08:22:41,374:actor and ref model engine initialized",
    f"{TASK}INFO:2026-11-26 08:22:41,409:reward loop manager initialized",
    f"{TASK}INFO:2026-11-26 08:23:08,937:checkpoint engine manager initialized",
    f"{TASK}INFO:2026-11-26 08:23:09,052:Training from scratch",
    f"{TASK}INFO:2026-11-26 08:23:09,052:all initialize finished, ready to fit",
]
STAGES = [
    "starting the job", "connecting to Ray", "reading the data", "waiting for workers", "loading the model",
    "starting the reward workers", "starting the rollout engines", "looking for a checkpoint", "first rollout",
]  # fmt: skip


def test_each_stage_is_told_once_in_order() -> None:
    assert [str(stage) for stage in stages(LINES)] == STAGES


def test_a_resumed_run_says_from_which_step() -> None:
    line = f"{TASK}INFO:2026-11-26 08:23:09,052:Resuming from /c/run/global_step_40, setting global step to 40"
    assert stages([line]) == [Starting("loading the checkpoint of step", JobPhase.LOAD_CHECKPOINT, "40")]


def test_the_step_is_that_of_the_innermost_folder() -> None:
    [stage] = stages(["Resuming from /c/from_global_step_3/global_step_40"])
    assert stage.detail == "40"


@pytest.mark.parametrize(
    "line", ["(WorkerDict pid=1) he said: create worker group x", "answer: Using dataset class: A"]
)
def test_words_within_a_line_are_text_of_others(line: str) -> None:
    assert stages([line]) == []


def test_the_loader_of_the_rollout_does_not_lead_back() -> None:
    reader = StartReader()
    for line in LINES:
        reader.read(line)
    assert reader.read("(AgentLoopWorkerTQ pid=31058) Using dataset class: RLHFDataset") is None


@given(st.lists(st.text() | st.sampled_from(LINES)))
def test_stages_never_run_back(lines: list[str]) -> None:
    found = [str(stage) for stage in stages(lines)]
    assert found == sorted(found, key=STAGES.index)
