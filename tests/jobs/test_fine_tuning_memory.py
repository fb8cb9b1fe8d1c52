"""The memory of supervised fine-tuning as a part of planning, and what its model does not go with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planning import MESSAGES as DATA
from planning import SFT_RAY as RAY
from planning import SFT_TORCHRUN as TORCHRUN
from planning import cluster, plan, typed
from planning import fine_tuned as sent

from cloudrl.jobs import Submission, SubmitOptions, plan_job
from cloudrl.jobs.draft import Snapshot
from cloudrl.jobs.findings import JobRefused
from cloudrl.jobs.local_files import inspect_files
from cloudrl.jobs.prompt_lengths import PromptLengths, find_prompt_lengths
from cloudrl.spec import Job
from cloudrl.verl.memory.report import MemoryReport
from cloudrl.verl.memory.verdict import Verdict
from cloudrl.verl.releases import RELEASE

MODEL = "Qwen/Qwen2.5-7B-Instruct"
BEFORE = ("torchrun", "--nproc_per_node=8", "-m", "verl.trainer.fsdp_sft_trainer")


def memory_of(*words: str, **changes: Any) -> MemoryReport:
    memory = sent(DATA, *words, **{"gpu": "H100:8", **changes}).memory
    assert memory is not None
    return memory


def test_the_verdict_goes_with_the_job() -> None:
    memory = memory_of()
    assert memory.estimate.verdict is Verdict.FITS
    assert {phase.group for phase in memory.estimate.phases} == {"load", "update", "save", "host", "disk"}
    assert memory.notes[-1] == "sequences count as half of their limit of 1024 tokens, at most as all of it"


def test_torchrun_says_how_many_gpus_train() -> None:
    """Whatever `trainer.n_gpus_per_node` says: 2 GPUs share what 16 share on Ray."""
    options = ("torchrun", "--nproc_per_node=2", "-m", "verl.trainer.sft_trainer")
    of_two, of_all = memory_of(entrypoint=options).estimate, memory_of().estimate
    assert (of_two.work.gpus, of_two.work.nodes) == (2, 1)
    assert (of_all.work.gpus, of_all.work.nodes) == (8, 2)
    weights = [estimate.phases[0].terms[0].amount.likely for estimate in (of_two, of_all)]
    assert weights[0] == pytest.approx(8 * weights[1])


@pytest.mark.parametrize(
    ("entrypoint", "words", "gpu"),
    [
        (TORCHRUN, ("data.max_token_len_per_gpu=262144", "data.max_length=8192"), "H100:8"),
        (
            TORCHRUN,
            ("data.use_dynamic_bsz=False", "data.micro_batch_size_per_gpu=32", "data.max_length=16384"),
            "H100:8",
        ),
        (TORCHRUN, ("model.enable_gradient_checkpointing=False",), "RTX4090:8"),
        (RAY, ("model.lora_rank=32", "engine.fsdp_size=1"), "RTX4090:8"),
        (RAY, (), "16GB:8"),
        (RAY, ("engine=megatron", "optim=megatron"), "40GB:8"),
    ],
)
def test_what_is_suggested_makes_it_fit(entrypoint: tuple[str, ...], words: tuple[str, ...], gpu: str) -> None:
    memory = memory_of(*words, entrypoint=entrypoint, gpu=gpu)
    assert not memory.estimate.likely_fits
    assert memory.remedy is not None
    assert not any(key.startswith("actor_rollout_ref") for key in memory.remedy.overrides)
    fixed = memory_of(
        *words, *(f"{key}={value}" for key, value in memory.remedy.overrides.items()),
        entrypoint=entrypoint, gpu=gpu, nodes=next((int(each.split()[1]) for each in memory.remedy.options), 2),
    )  # fmt: skip
    assert fixed.estimate.likely_fits


@pytest.mark.parametrize(
    ("entrypoint", "words", "expected"),
    [
        (RAY, (), 8),
        (RAY, ("data.val_files=/d/messages.parquet", "data.num_workers=64"), 16),
        (TORCHRUN, (), 8 * 8),
        (TORCHRUN, ("data.val_files=/d/messages.parquet", "data.num_workers=2"), 8 * 2 * 2),
        (BEFORE, (), 8 * 8 * 2),
    ],
)
def test_processes_that_read_data(entrypoint: tuple[str, ...], words: tuple[str, ...], expected: int) -> None:
    """On Ray the driver alone has some (verl 0.9.1, trainer/sft_trainer_ray.py: _build_dataloader)."""
    release = {"verl": "0.7.0"} if entrypoint == BEFORE else {}
    assert memory_of(*words, entrypoint=entrypoint, **release).estimate.work.loader_processes == expected


def test_more_nodes_are_no_remedy_for_torchrun() -> None:
    """Its own options have the number of processes."""
    memory = memory_of("model.lora_rank=32", "engine.model_dtype=bfloat16", entrypoint=TORCHRUN, gpu="4GB:8")
    assert memory.remedy is None


def test_the_trainer_before_engines_pads_and_has_torchs_loss() -> None:
    """verl 0.7.0, trainer/fsdp_sft_trainer.py."""
    words = ("data.micro_batch_size_per_gpu=16", "data.max_length=4096")
    memory = memory_of(*words, entrypoint=BEFORE, verl="0.7.0")
    assert not memory.estimate.likely_fits
    assert "every row counts as 4096 tokens: verl pads it to that" in memory.notes
    assert memory.longest_mean is None
    [moment] = [each for each in memory.estimate.phases if each.moment == "forward and logits"]
    logits = next(term.amount.likely for term in moment.terms if term.what == "logits")
    assert logits == pytest.approx(16 * 16 * 4096 * 152064 / 2**30)
    assert memory.remedy is not None
    assert set(memory.remedy.overrides) == {"data.micro_batch_size_per_gpu"}
    split = memory_of(
        *words, "ulysses_sequence_parallel_size=4", "use_remove_padding=True", entrypoint=BEFORE, verl="0.7.0"
    )
    assert split.estimate.work.actor.removes_padding


def test_a_release_without_that_trainer_names_one_that_it_has() -> None:
    meant = r"has no program verl\.trainer\.fsdp_sft_trainer; did you mean 'verl\.trainer\.sft_trainer'"
    with pytest.raises(JobRefused, match=meant):
        sent(DATA, entrypoint=BEFORE)


def test_an_engine_without_formulas_is_said() -> None:
    submission = sent(DATA, "engine=veomni", "optim=veomni", gpu="H100:8")
    assert submission.memory is None
    assert submission.not_checked == ("memory (the memory of strategy veomni is not modelled)",)


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (("engine.ulysses_sequence_parallel_size=8",), "=8 does not divide the 28 attention heads",
         "engine.ulysses_sequence_parallel_size=4"),
        (("engine=megatron", "optim=megatron", "engine.pipeline_model_parallel_size=16"),
         "=16 does not divide the 28 layers", "engine.pipeline_model_parallel_size=4"),
    ],
)  # fmt: skip
def test_what_does_not_divide_the_model_is_refused(words: tuple[str, ...], says: str, hint: str) -> None:
    with pytest.raises(JobRefused, match=says) as caught:
        sent(DATA, *words)
    [finding] = caught.value.findings
    assert list(finding.fix) == [hint]
    sent(DATA, *words, hint)


def test_a_model_that_nothing_here_knows() -> None:
    job = Job(name="sft", entrypoint=RAY, model="me/unheard-of", verl=RELEASE.verl)
    submission = plan(job, cluster(models={"me/unheard-of": "/models/u"}), SubmitOptions(overrides=typed(DATA)))
    assert submission.not_checked == ("memory and heads (config.json of /models/u unknown)",)


def test_a_folder_that_the_job_names_by_verls_key(tmp_path: Path) -> None:
    """Not `--model`: `model.path` of verl's fine-tuning."""
    (tmp_path / "mine").mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 16, "vocab_size": 32000,
              "num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 8192}  # fmt: skip
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    job = Job(name="sft", entrypoint=RAY, verl=RELEASE.verl)
    memory = with_lengths(job, tmp_path, None, "model.path=./mine").memory
    assert memory is not None
    assert memory.notes[0] == "the model's sizes are from ./mine/config.json"


def with_lengths(job: Job, here: Path, prompts: PromptLengths | None, *words: str) -> Submission:
    from cloudrl.jobs.model_files import find_model_configs

    options = SubmitOptions(overrides=typed(DATA, *words))
    files = dataclasses.replace(inspect_files(job, options, here=here), here=here)
    snapshot = Snapshot(
        cluster(gpu="H100:8"), files, models=find_model_configs(job, options, files, environment={}), prompts=prompts
    )
    return plan_job(job, options, snapshot)


def test_conversations_of_this_machine_are_counted(tmp_path: Path) -> None:
    messages = [[{"role": "user", "content": "x" * 400}, {"role": "assistant", "content": "y" * 1200}]] * 3
    pq.write_table(pa.table({"messages": messages}), tmp_path / "chats.parquet")
    job = Job(name="sft", entrypoint=RAY, model=MODEL, verl=RELEASE.verl)
    options = SubmitOptions(overrides=typed("data.train_files=./chats.parquet"))
    files = dataclasses.replace(inspect_files(job, options, here=tmp_path), here=tmp_path)
    lengths = find_prompt_lengths(job, options, files)
    assert lengths is not None
    assert lengths.mean == 420
    assert lengths.source.startswith("conversations of ./chats.parquet have 420 tokens in the mean")
    memory = with_lengths(job, tmp_path, lengths).memory
    assert memory is not None
    assert memory.estimate.work.lengths.usual.likely == 420
    assert not any("answers" in note for note in memory.notes)


def test_a_conversation_that_is_too_long_ends_the_job(tmp_path: Path) -> None:
    lengths = PromptLengths(900, "", "./chats.parquet", (100, 1500, 2000))
    job = Job(name="sft", entrypoint=RAY, model=MODEL, verl=RELEASE.verl)
    [warning] = with_lengths(job, tmp_path, lengths).warnings
    assert warning.startswith(
        "2 of the first 3 conversations of ./chats.parquet have more tokens than data.max_length=1024"
    )
    assert with_lengths(job, tmp_path, lengths, "data.truncation=right").warnings == ()
    assert with_lengths(job, tmp_path, lengths, "data.max_length=2304").warnings == ()
    assert "data.max_length=2304" in warning
