import re
from dataclasses import replace
from typing import Any

import pytest
from planning import cluster, plan

from cloudrl import recipes
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.submission import Submission
from cloudrl.protocol.facts import ClusterFacts

LAB = cluster(
    gpus_per_node=1, device="cpu", data={"addition": {"train": "/vol/train.parquet", "test": "/vol/test.parquet"}},
    models={"tiny-adder": "/vol/tiny"}, secrets_dir="/dev/shm/cloudrl-0-1", ray_version="2.60.0",
)  # fmt: skip
OLD = replace(LAB, secrets_dir=None)
READER = "/bin/sh /dev/shm/cloudrl-0-1/one"
KEY = "ray_kwargs.ray_init.runtime_env.py_executable"
WANDB = {"trainer.logger": ["console", "wandb"]}
ON_THE_HUB = {"actor_rollout_ref.model.path": "Qwen/Gated"}
MARKER = "marker-0123456789"


def planned(shape: ClusterFacts = LAB, shell: dict[str, str] | None = None, **options: Any) -> Submission:
    job = recipes.load("grpo-tiny")
    job = job.replace(env={key: value for key, value in job.env.items() if key != "HF_HUB_OFFLINE"})
    return plan(job, shape, SubmitOptions(submission_id="one", **options), shell=shell)


def shown(submission: Submission) -> str:
    return submission.render() + repr(submission) + str(submission.request()) + str(submission.sent_before())


def test_they_go_through_the_agents_and_nowhere_else():
    submission = planned(env={"MY_API_TOKEN": MARKER, "A": "1"}, runtime_env={"env_vars": {"DB_PASSWORD": MARKER}})
    assert submission.secrets == {"MY_API_TOKEN": MARKER, "DB_PASSWORD": MARKER}
    assert submission.entrypoint.startswith(f"{READER} python3 -m verl.trainer.main_ppo ")
    assert submission.argv[-1] == f"++{KEY}='{READER} python3'"
    assert submission.runtime_env["env_vars"]["A"] == "1"
    assert "py_executable" not in submission.runtime_env
    assert MARKER not in shown(submission)
    assert "# Secrets, through the agents: DB_PASSWORD, MY_API_TOKEN\n" in submission.render()
    assert submission.sent_before() == {"secrets": ["DB_PASSWORD", "MY_API_TOKEN"]}
    submission = planned(env={"MY_API_TOKEN": MARKER, "COPY": f"is {MARKER}"})
    assert MARKER not in submission.render(), "a copy is masked, too"


def test_without_secrets_nothing_changes():
    submission = planned(env={"A": "1", "EMPTY_TOKEN": ""})
    assert submission.argv[0] == "python3"
    assert KEY not in submission.entrypoint
    assert submission.secrets == {}


@pytest.mark.parametrize(
    "given",
    [
        {"overrides": {f"+{KEY}": "uv run python"}},
        {"overrides": {KEY: "uv run python"}},
        {"runtime_env": {"py_executable": "uv run python"}},
        {"runtime_env": {"py_executable": "uv run python"}, "overrides": {KEY: None}},
    ],
)
def test_a_python_of_the_users_own_stands_behind_the_reader(given: dict[str, Any]):
    submission = planned(env={"MY_API_TOKEN": MARKER}, **given)
    assert [word for word in submission.argv if KEY in word] == [f"++{KEY}='{READER} uv run python'"]
    assert "py_executable" not in submission.runtime_env


def test_a_verl_that_leaves_the_runtime_environment_alone():
    old = replace(LAB, verl_version="0.5.0")
    job = recipes.load("grpo-tiny").replace(verl="0.5.0")
    submission = plan(job, old, SubmitOptions(submission_id="one", env={"MY_API_TOKEN": MARKER}))
    assert submission.runtime_env["py_executable"] == f"{READER} python3"
    assert KEY not in submission.entrypoint


@pytest.mark.parametrize(
    ("shape", "runtime_env", "reason"),
    [
        (OLD, {}, "cluster 'lab' has no agents that could pass it otherwise"),
        (LAB, {"pip": ["x"]}, "with 'pip' in the runtime environment"),
        (LAB, {"conda": "x"}, "with 'conda' in the runtime environment"),
        (replace(LAB, ray_version="2.42.1"), {}, r"only Ray 2.43 and later can be .* \(this is 2.42.1\)"),
    ],
)
def test_where_only_ray_can_pass_them(shape: ClusterFacts, runtime_env: dict[str, Any], reason: str):
    shell = {"HF_TOKEN": "hf-0123456789"}
    asked = {"env": {"MY_API_TOKEN": MARKER}, "runtime_env": runtime_env, "overrides": ON_THE_HUB}
    submission = planned(shape, shell, durable=False, **asked)
    assert submission.secrets == {}
    assert submission.runtime_env["env_vars"]["MY_API_TOKEN"] == MARKER
    assert MARKER not in submission.render()
    kept, passed = submission.notes[-2:]
    assert kept.startswith("not passed on from this shell: HF_TOKEN")
    assert "hf-0123456789" not in str(submission.request())
    assert passed.startswith("passed on by Ray: MY_API_TOKEN; Ray writes it to a log on every node")
    assert re.search(reason, passed)


SHELL = {"HF_TOKEN": "hf-0123456789", "WANDB_API_KEY": "wb-0123456789", "OTHER_TOKEN": "ot-0123456789", "HOME": "/h"}


@pytest.mark.parametrize(
    ("overrides", "taken"),
    [
        ({}, set()),
        (WANDB, {"WANDB_API_KEY"}),
        (ON_THE_HUB, {"HF_TOKEN"}),
        ({**WANDB, **ON_THE_HUB}, {"HF_TOKEN", "WANDB_API_KEY"}),
        ({"trainer.logger": ["console", "trackio"]}, {"HF_TOKEN"}),
    ],
)
def test_what_the_job_needs_is_taken_from_the_shell(overrides: dict[str, Any], taken: set[str]):
    submission = planned(shell=SHELL, overrides=overrides)
    assert set(submission.secrets) == taken
    notes = [note for note in submission.notes if note.startswith("passed on from this shell: ")]
    assert len(notes) == bool(taken)
    assert all(name in notes[0] for name in taken)
    assert not [value for value in SHELL.values() if len(value) > 5 and value in shown(submission) + str(notes)]


def test_what_is_given_is_not_replaced():
    submission = planned(shell=SHELL, overrides=WANDB, env={"WANDB_API_KEY": "mine-0123456789"})
    assert submission.secrets == {"WANDB_API_KEY": "mine-0123456789"}
    assert not [note for note in submission.notes if "from this shell" in note]
    submission = planned(shell=SHELL, overrides=ON_THE_HUB, env={"HF_TOKEN": ""})
    assert (submission.secrets, submission.runtime_env["env_vars"]["HF_TOKEN"]) == ({}, ""), "empty keeps it here"


@pytest.mark.parametrize(
    ("shell", "nodes", "env", "said"),
    [
        ({}, (), {}, True),
        (SHELL, (), {}, False),
        ({}, (), {"WANDB_MODE": "offline"}, False),
        ({}, (), {"WANDB_API_KEY": "x" * 9}, False),
        ({}, ("WANDB_API_KEY",), {}, False),  # a secret of the cluster
        ({}, ("WANDB_MODE",), {}, False),
        ({}, ("HF_TOKEN",), {}, True),
        ({}, ("WANDB_API_KEY",), {"WANDB_API_KEY": ""}, True),
    ],
)
def test_a_logger_without_its_key(shell: dict[str, str], nodes: tuple[str, ...], env: dict[str, str], said: bool):
    notes = planned(replace(LAB, variables=frozenset(nodes)), shell, env=env, overrides=WANDB).notes
    wanted = "trainer.logger has wandb, and no WANDB_API_KEY goes with the job: the nodes need one"
    assert (wanted in notes) == said
