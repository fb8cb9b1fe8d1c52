"""verl's configuration as a pass of planning: what is refused, what is noted, and what cannot be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planning import LEAST, cluster, job, plan, planned, typed

import cloudrl
from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions

MAIN = ("python3", "-m", "verl.trainer.main_ppo")
ADD = "; cloudrl verl add makes it known"
UNKNOWN = "data.train_batchsize=8"


def test_a_key_that_verl_does_not_have() -> None:
    with pytest.raises(InputError, match=r"^data.train_batchsize: verl 0.9.1 has no such key\n") as caught:
        planned(overrides=typed(UNKNOWN))
    assert caught.value.hint == "data.train_batch_size=8\nSend it all the same: --unchecked"


def test_all_of_it_at_once() -> None:
    with pytest.raises(InputError) as caught:
        planned(overrides=typed("data.train_batch_size=250", "algorithm.adv_estimator=grop"), job_=job(overrides={}))
    lines = caught.value.message.splitlines()
    assert lines[0] == "this job cannot run, for 6 reasons:"
    named = lines.index("    algorithm.adv_estimator=grpo")
    assert lines[named - 1].startswith("  algorithm.adv_estimator=grop: verl has none of that name")
    assert "    data.train_batch_size=240" in lines
    assert "    actor_rollout_ref.rollout.name=vllm" in lines


def test_it_may_be_sent_all_the_same() -> None:
    submission = planned(overrides=typed(UNKNOWN), unchecked=True)
    assert UNKNOWN in submission.argv
    assert submission.warnings == ("with verl 0.9.1: data.train_batchsize: verl 0.9.1 has no such key",)


def test_the_number_of_gpus_is_that_of_the_cluster() -> None:
    """What goes together on two nodes need not on three."""
    assert planned(view=cluster(nodes=2))
    with pytest.raises(InputError, match="cannot be divided over 24 data-parallel ranks"):
        planned(view=cluster(nodes=3))
    assert planned(view=cluster(nodes=3), overrides=typed("trainer.nnodes=2"))


@pytest.mark.parametrize(
    ("view", "release", "said"),
    [
        (cluster(verl_version="0.6.1"), "0.6.1", f"cloudrl does not know verl 0.6.1{ADD}"),
        (cluster(verl_version=None), None, "cloudrl does not know verl of unknown version"),
    ],
)
def test_a_release_whose_configuration_is_not_known_is_noted(view: Any, release: str | None, said: str) -> None:
    assert planned(job(verl=release), view, overrides=typed(UNKNOWN)).not_checked == (f"the configuration ({said})",)


@pytest.mark.parametrize(
    ("view", "options"),
    [
        (cluster(verl_version=None), {}),  # an image of one's own, or a plain Ray: the recipe says what it is for
        (cluster(), {"runtime_env": {"pip": ["verl==0.10"]}}),
        (cluster(), {"working_dir": "https://example.org/fork.zip"}),
        (cluster(), {"runtime_env": {"working_dir": "s3://mine/fork.zip"}}),
        (cluster(), {"env": {"PYTHONPATH": "/shared/verl"}}),
        (cluster(), {"runtime_env": {"env_vars": {"PYTHONPATH": "/shared/verl"}}}),
    ],
)
def test_where_another_verl_may_run_nothing_is_refused(view: Any, options: dict[str, Any]) -> None:
    warnings = planned(view=view, overrides=typed(UNKNOWN), **options).warnings
    assert "with verl 0.9.1: data.train_batchsize: verl 0.9.1 has no such key" in warnings


def test_other_packages_are_not_another_verl() -> None:
    with pytest.raises(InputError, match="has no such key"):
        planned(overrides=typed(UNKNOWN), runtime_env={"pip": ["math-verify", "sympy[x]==1.12"]})
    planned(overrides=typed(UNKNOWN), runtime_env={"pip": ["-r req.txt"]})
    planned(overrides=typed(UNKNOWN), runtime_env={"uv": {"packages": ["git+https://example.org/x"]}})


@pytest.mark.parametrize(
    "before", [("uv", "run", "--with", "verl==0.10", "python3"), ("env", "A=b", "python3"), ("/opt/mine/bin/python",)]
)
def test_another_python_may_have_another_verl(before: tuple[str, ...]) -> None:
    made = job(entrypoint=(*before, *MAIN[1:]))
    assert "with verl 0.9.1: data.train_batchsize" in str(planned(made, overrides=typed(UNKNOWN)).warnings)
    own = typed("algorithm.adv_estimator=grop", "+ray_kwargs.ray_init.runtime_env.py_executable=/opt/mine/bin/python")
    assert planned(overrides=own).notes


def test_a_debugger_is_not_another_verl() -> None:
    with pytest.raises(InputError, match="has no such key"):
        planned(overrides=typed(UNKNOWN), debug="debugpy")


def test_a_set_up_command_may_bring_another_verl() -> None:
    fields = {"setup": ["pip install git+https://github.com/verl-project/verl"], "gpu": "H100:8"}
    note, only_machine = cloudrl.check("grpo", {"trainer.new_entry": 1}, cluster=fields, on="dstack")
    assert only_machine.startswith("if the only machine is lost")
    assert note.startswith("with verl 0.9.1: trainer.new_entry: verl 0.9.1 has no such key")
    with pytest.raises(InputError, match=r"trainer\.new_entry"):
        cloudrl.check(
            "grpo", {"trainer.new_entry": 1}, cluster={"setup": ["pip install x"], "gpu": "H100:8"}, on="dstack"
        )


def test_a_verl_of_ones_own_is_noted(tmp_path: Path) -> None:
    (tmp_path / "fork/verl/version").mkdir(parents=True)
    (tmp_path / "fork/verl/__init__.py").write_text("")
    (tmp_path / "fork/verl/version/version").write_text("0.9.1\n")
    options = SubmitOptions(working_dir=str(tmp_path / "fork"), overrides=typed(UNKNOWN))
    submission = plan(job(), cluster(), options, here=tmp_path)
    assert submission.not_checked == (f"the configuration (cloudrl does not know a verl of your own{ADD})",)
    assert submission.remarks.lines[-1].startswith(
        "note: not checked before the job starts: the configuration (cloudrl does not know a verl of your own"
    )


FSDP_KEY = {"actor_rollout_ref.actor.fsdp_config.reshard_after_forward": "false"}


@pytest.mark.parametrize(
    "entrypoint",
    [
        (*MAIN, "--config-name=ppo_megatron_trainer"),
        (*MAIN, "-cn", "ppo_megatron_trainer"),
        (*MAIN, "model_engine=megatron"),
        (*MAIN, "--config-path=config", "--config-name=ppo_megatron_trainer.yaml"),
        (*MAIN, "-cp", "config", "-cn", "ppo_megatron_trainer"),
    ],
)
def test_the_configuration_is_that_of_the_entry_point(entrypoint: tuple[str, ...]) -> None:
    assert planned(job(overrides={"algorithm.adv_estimator": "grpo", **LEAST, **FSDP_KEY})).notes == ()
    with pytest.raises(InputError) as caught:
        planned(job(entrypoint=entrypoint, overrides={"algorithm.adv_estimator": "grpo", **LEAST, **FSDP_KEY}))
    assert "fsdp_config.reshard_after_forward: verl 0.9.1 has no such key" in caught.value.message


@pytest.mark.parametrize(
    ("entrypoint", "why"),
    [
        ((*MAIN, "--config-path", "/my/configs"), "--config-path /my/configs is a folder of the nodes"),
        ((*MAIN, "--config-dir=/my/configs"), "--config-dir /my/configs is a folder of the nodes"),
        ((*MAIN, "--multirun"), "the entry point has option --multirun"),
        (("bash", "train.sh"), "the job runs another program than verl.trainer.main_ppo"),
        ((*MAIN, "hydra.searchpath=[file:///mine]"), "hydra.searchpath=file:///mine is a folder of the nodes"),
    ],
)
def test_what_another_program_reads_is_not_checked_and_that_is_said(entrypoint: tuple[str, ...], why: str) -> None:
    submission = planned(job(entrypoint=entrypoint), overrides=typed(UNKNOWN), durable=False)
    assert (submission.notes, submission.not_checked) == ((), (f"the configuration ({why})",))


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("trainer.nnodes=${oc.env:NODES,1}", "it takes values from the environment of the nodes"),
        ("trainer.project_name=${hydra:runtime.cwd}", "is known to the nodes alone"),
    ],
)
def test_values_that_nobody_here_knows_are_not_checked_and_that_is_said(override: str, why: str) -> None:
    [unknown] = planned(overrides=typed(override, "algorithm.adv_estimator=grop")).not_checked
    assert unknown.startswith("the values of the configuration (")
    assert why in unknown


def test_a_date_is_known_here() -> None:
    with pytest.raises(InputError, match="adv_estimator=grop"):
        planned(overrides=typed("trainer.project_name=${now:%Y}", "algorithm.adv_estimator=grop"))


def test_what_may_end_the_job_is_noted() -> None:
    lengths = typed("data.max_response_length=30000")
    [note] = planned(overrides=lengths).notes
    assert (
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 is less than a prompt and an answer may have" in note
    )
    [note] = planned(overrides=typed("+trainer.total_epoch=3")).notes
    assert note == "trainer.total_epoch is a key of your own, and verl has trainer.total_epochs: is that meant?"
