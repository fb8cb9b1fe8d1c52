"""verl's configuration as a pass of planning: what is refused, what is noted, and where nobody here knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planning import DYNAMIC, cluster, job, plan, planned, typed

from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions

MAIN = ("python3", "-m", "verl.trainer.main_ppo")
UNKNOWN = "data.train_batchsize=8"


def test_a_key_that_verl_does_not_have() -> None:
    with pytest.raises(InputError, match=r"^data.train_batchsize: verl 0.9.1 has no such key\n") as caught:
        planned(overrides=typed(UNKNOWN))
    assert caught.value.hint == "data.train_batch_size=8\nSend it all the same: --unchecked"


def test_all_of_it_at_once() -> None:
    with pytest.raises(InputError) as caught:
        planned(overrides=typed("data.train_batch_size=250", "algorithm.adv_estimator=grop", "trainer.nnodes=2"),
                job_=job(overrides={}))  # fmt: skip
    lines = caught.value.message.splitlines()
    assert lines[0] == "verl 0.9.1 cannot run this job, for 5 reasons:"
    assert "  algorithm.adv_estimator=grop: verl knows gae, " in lines[1]
    assert "    data.train_batch_size=240" in lines


def test_it_may_be_sent_all_the_same() -> None:
    submission = planned(overrides=typed(UNKNOWN), unchecked=True)
    assert UNKNOWN in submission.argv
    assert submission.notes == ("data.train_batchsize: verl 0.9.1 has no such key",)


def test_the_number_of_gpus_is_that_of_the_cluster() -> None:
    """What goes together on two nodes need not on three."""
    assert planned(view=cluster(nodes=2))
    with pytest.raises(InputError, match="cannot be divided over 24 data-parallel ranks"):
        planned(view=cluster(nodes=3))
    assert planned(view=cluster(nodes=3), overrides=typed("trainer.nnodes=2"))


@pytest.mark.parametrize(
    ("view", "release", "said"),
    [
        (cluster(verl_version="0.9.0"), "0.9.0", ["cloudrl does not know verl 0.9.0"]),
        (cluster(verl_version=None), None, ["cloudrl does not know verl of unknown version"]),
        (cluster(), "0.9.1", []),
    ],
)
def test_a_release_whose_configuration_is_not_known_is_noted(view: Any, release: str | None, said: list[str]) -> None:
    submission = planned(job(verl=release), view, overrides=typed() if said == [] else typed(UNKNOWN))
    assert [note.partition(": ")[2] for note in submission.notes if "is not checked" in note] == said


def test_a_verl_of_ones_own_is_noted(tmp_path: Path) -> None:
    (tmp_path / "fork/verl/version").mkdir(parents=True)
    (tmp_path / "fork/verl/__init__.py").write_text("")
    (tmp_path / "fork/verl/version/version").write_text("0.9.1\n")
    options = SubmitOptions(working_dir=str(tmp_path / "fork"), overrides=typed(UNKNOWN))
    notes = plan(job(), cluster(), options, here=tmp_path).notes
    assert "the configuration is not checked before the job starts: cloudrl does not know a verl of your own" in notes


@pytest.mark.parametrize(
    ("entrypoint", "refused"),
    [
        ((*MAIN, "--config-name=ppo_megatron_trainer"), "The dp engine has it: model_engine=dp"),
        ((*MAIN, "-cn", "ppo_megatron_trainer"), "The dp engine has it: model_engine=dp"),
        ((*MAIN, "--config-path", "/my/configs"), None),
        ((*MAIN, "--config-dir=/my/configs"), None),
        (("python3", "-m", "my.trainer"), None),
    ],
)
def test_the_configuration_is_that_of_the_entry_point(entrypoint: tuple[str, ...], refused: str | None) -> None:
    given = {**DYNAMIC, "actor_rollout_ref.actor.fsdp_config.reshard_after_forward": "false"}
    made = job(entrypoint=entrypoint, overrides={"algorithm.adv_estimator": "grpo", **given})
    if refused is None:
        assert planned(made).notes == ()
        return
    with pytest.raises(InputError) as caught:
        planned(made)
    assert refused in str(caught.value)


def test_what_may_end_the_job_is_noted() -> None:
    lengths = typed("data.max_response_length=30000")
    [note] = planned(overrides=lengths).notes
    assert (
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 is less than a prompt and an answer may have" in note
    )
    [note] = planned(overrides=typed("+trainer.total_epoch=3")).notes
    assert note == "trainer.total_epoch is a key of your own, and verl has trainer.total_epochs: is that meant?"
