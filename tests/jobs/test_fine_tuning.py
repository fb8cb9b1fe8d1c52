"""Supervised fine-tuning: composed by verl's own YAML of it, with the keys that it has and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planning import cluster, plan, planned, typed

from cloudrl.jobs import Submission, SubmitOptions
from cloudrl.jobs.findings import JobRefused
from cloudrl.spec import Job
from cloudrl.verl.command import SFT_CONFIG, read_command
from cloudrl.verl.composition import compose
from cloudrl.verl.releases import RELEASE

RAY = ("python3", "-m", "verl.trainer.sft_trainer_ray")
TORCHRUN = ("torchrun", "--nproc_per_node=8", "-m", "verl.trainer.sft_trainer")
DATA = "data.train_files=/d/messages.parquet"


def sent(*words: str, entrypoint: tuple[str, ...] = RAY, **changes: Any) -> Submission:
    job = Job(
        name="sft", entrypoint=entrypoint, model="Qwen/Qwen2.5-7B-Instruct", verl=changes.get("verl", RELEASE.verl)
    )
    return planned(job, cluster(verl_version=job.verl), overrides=typed(*words))


@pytest.mark.parametrize("entrypoint", [RAY, TORCHRUN])
@pytest.mark.parametrize("verl", ["0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"])
def test_what_is_sent_is_what_each_release_composes(entrypoint: tuple[str, ...], verl: str) -> None:
    submission = sent(DATA, entrypoint=entrypoint, verl=verl)
    words = submission.argv[len(entrypoint) :]
    assert "model.path=/models/qwen" in words
    assert compose(verl, words, SFT_CONFIG).problems == ()
    [skipped] = submission.not_checked
    assert skipped == f"the values of the configuration, and memory (the job runs {entrypoint[-1]})"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("data.train_batchsize=8", "data.train_batch_size=8"),
        ("+trainer.seed=2", "trainer.seed=2"),
        ("engine.ulysses_sequence_parallel=2", "engine.ulysses_sequence_parallel_size=2"),
    ],
)
def test_a_key_that_fine_tuning_does_not_have(word: str, hint: str) -> None:
    with pytest.raises(JobRefused) as caught:
        sent(DATA, word)
    [finding] = caught.value.findings
    assert finding.fix[-1] == hint
    sent(DATA, hint)


def test_keys_of_reinforcement_learning_are_refused() -> None:
    with pytest.raises(JobRefused, match="has no such key"):
        sent(DATA, "actor_rollout_ref.rollout.n=4")


def test_data_with_messages_is_the_users() -> None:
    with pytest.raises(JobRefused, match=r"says: data\.train_files"):
        sent()


def test_another_model_takes_the_place_of_the_recipes(tmp_path: Path) -> None:
    job = Job(name="sft", entrypoint=RAY, overrides={"model.path": "/m", **typed(DATA)}, verl=RELEASE.verl)
    words = planned(job, model="Qwen/Qwen2.5-7B-Instruct").argv
    assert [word for word in words if "model" in word] == ["model.path=/models/qwen"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.json").write_text("{}")
    submission = plan(job, cluster(), SubmitOptions(model="./mine"), here=tmp_path)
    assert submission.uploads[0].text == "./mine"
    assert f"model.path={submission.uploads[0].to}" in submission.argv


def test_no_rule_of_main_ppo_is_applied() -> None:
    assert sent(DATA, "data.train_batch_size=7").warnings == ()


def test_the_command_line_chooses_the_configuration() -> None:
    command = read_command((*RAY, "trainer.seed=2"))
    assert (command.config_name, command.words, command.is_usual, command.program) == (
        SFT_CONFIG, ("trainer.seed=2",), True, RAY[-1],
    )  # fmt: skip
    assert read_command(TORCHRUN).is_usual
    assert not read_command(("bash", "x.sh", "verl.trainer.sft_trainer")).is_usual
