"""Supervised fine-tuning: composed by verl's own YAML of it, with the keys that it has and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from planning import MESSAGES as DATA
from planning import SFT_RAY as RAY
from planning import SFT_TORCHRUN as TORCHRUN
from planning import cluster, plan, planned, typed
from planning import fine_tuned as sent

from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.findings import JobRefused
from cloudrl.spec import Job
from cloudrl.verl.command import SFT_CONFIG, processes, read_command
from cloudrl.verl.composition import compose
from cloudrl.verl.releases import RELEASE


@pytest.mark.parametrize("entrypoint", [RAY, TORCHRUN])
@pytest.mark.parametrize("verl", ["0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"])
def test_what_is_sent_is_what_each_release_composes(entrypoint: tuple[str, ...], verl: str) -> None:
    submission = sent(DATA, entrypoint=entrypoint, verl=verl)
    words = submission.argv[len(entrypoint) :]
    assert "model.path=/models/qwen" in words
    assert compose(verl, words, SFT_CONFIG).problems == ()
    unread = f"batches, values and names of the configuration (the job runs {entrypoint[-1]})"
    assert submission.not_checked == (*(() if verl == RELEASE.verl else (unread,)), "memory (card unknown)")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("data.train_batchsize=32", "data.train_batch_size=32"),
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


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("data.train_batch_size=abc", "data.train_batch_size=256"),
        ("data.train_batch_size=7", "data.train_batch_size=16"),
        ("data.train_files=[/d/a.parquet,/d/b/]", "data.train_files=[/d/a.parquet,/d/b]"),
        ("data.pad_mode=left", ""),
        ("data.truncation=eror", "data.truncation=error"),
        ("data.max_length=0", "data.max_length=1024"),
        ("data.messages_key=[1]", "data.messages_key=messages"),
        ("optim.lr=1e-6x", "optim.lr=0.001"),
        ("optim.lr_scheduler_type=linear", ""),
        ("engine.strategy=fsdp3", "engine.strategy=fsdp"),
        ("engine.fsdp_size=3", "engine.fsdp_size=-1"),
        ("+engine.my_key=1", ""),
        ("+model.my_key=1", ""),
        ("model.tokenizer_path=[1]", "model.tokenizer_path=null"),
        ("trainer.test_freq=0", "trainer.test_freq=-1"),
        ("trainer.save_freq=often", "trainer.save_freq=-1"),
        ("trainer.total_epochs=1.5", "trainer.total_epochs=4"),
        ("trainer.logger=[consol]", "trainer.logger=[console]"),
        ("trainer.resume_mode=latest", ""),
        ("trainer.profile_interval=[3,1]", "trainer.profile_interval=[-1,-1]"),
    ],
)
def test_what_fine_tuning_refuses(word: str, hint: str) -> None:
    with pytest.raises(JobRefused) as caught:
        sent(DATA, word)
    [finding] = caught.value.findings
    assert word.lstrip("+").partition("=")[0].rpartition(".")[2] in finding.text
    assert not hint or list(finding.fix) == [hint]
    if hint:
        sent(DATA, hint)


@pytest.mark.parametrize(
    "word", ["trainer.save_freq=after_each_epoch", "data.val_files=null", "trainer.profile_interval=[1,3]",
             "data.train_batch_size=32", "+data.mine=1", "trainer.total_training_steps=3"],
)  # fmt: skip
def test_what_fine_tuning_takes(word: str) -> None:
    assert sent(DATA, word).warnings == ()


def test_micro_batches_count_where_tokens_do_not() -> None:
    fixed = ("data.use_dynamic_bsz=False", "data.train_batch_size=32")
    with pytest.raises(JobRefused, match=r"does not divide the 2 rows .* on each of 16"):
        sent(DATA, *fixed, "data.micro_batch_size_per_gpu=4")
    sent(DATA, *fixed, "data.micro_batch_size_per_gpu=2")


def test_torchrun_drops_rows_that_do_not_divide_and_needs_one_for_each_process() -> None:
    sent(DATA, "data.train_batch_size=15", entrypoint=TORCHRUN)
    with pytest.raises(JobRefused, match="over 8 data-parallel ranks"):
        sent(DATA, "data.train_batch_size=7", entrypoint=TORCHRUN)
    sent(DATA, "data.train_batch_size=7", entrypoint=("torchrun", "--nproc_per_node=gpu", "-m", TORCHRUN[-1]))


def test_sequences_are_split_over_whole_groups() -> None:
    with pytest.raises(JobRefused, match=r"16 GPUs cannot be divided by engine\.ulysses_sequence_parallel_size=3"):
        sent(DATA, "engine.ulysses_sequence_parallel_size=3", "model.use_remove_padding=True")
    with pytest.raises(JobRefused, match=r"needs model\.use_remove_padding"):
        sent(DATA, "engine.ulysses_sequence_parallel_size=2", "model.use_remove_padding=False")


def test_a_release_that_was_not_read_is_checked_by_its_own_dataclasses() -> None:
    sent(DATA, "data.pad_mode=left", verl="0.8.0")
    with pytest.raises(JobRefused, match="my_key"):
        sent(DATA, "+engine.my_key=1", verl="0.8.0")


@pytest.mark.parametrize(
    ("options", "count"),
    [(("--nproc_per_node=8",), 8), (("--nproc-per-node", "4", "--nnodes=2"), 8),
     (("--nnodes=1:4", "--nproc_per_node=8"), None), (("--nproc_per_node=auto",), None), (("--standalone",), None)],
)  # fmt: skip
def test_how_many_processes_torchrun_starts(options: tuple[str, ...], count: int | None) -> None:
    assert processes(("torchrun", *options, "-m", TORCHRUN[-1])) == count


def test_the_command_line_chooses_the_configuration() -> None:
    command = read_command((*RAY, "trainer.seed=2"))
    assert (command.config_name, command.words, command.is_usual, command.program) == (
        SFT_CONFIG, ("trainer.seed=2",), True, RAY[-1],
    )  # fmt: skip
    assert read_command(TORCHRUN).is_usual
    assert not read_command(("bash", "x.sh", "verl.trainer.sft_trainer")).is_usual
