"""Memory and model as a part of planning: from what this machine knows of models, data and earlier runs."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planning import cluster, job

from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions, plan_job
from cloudrl.jobs.draft import Snapshot
from cloudrl.jobs.local_files import inspect_files
from cloudrl.jobs.memory_runs import keep_run, read_runs
from cloudrl.jobs.model_files import find_model_configs
from cloudrl.jobs.prompt_lengths import PromptLengths, find_prompt_lengths
from cloudrl.jobs.submission import Submission
from cloudrl.spec import Job
from cloudrl.verl.memory.runs import RunMemory

H100 = {"gpu": "H100:8"}
MEGATRON = "actor_rollout_ref.actor.megatron"
MODEL = "Qwen/Qwen2.5-7B-Instruct"
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 12,
    "num_key_value_heads": 4, "intermediate_size": 8192, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip


def planned(job_: Job | None = None, *, here: Path = Path("/nowhere"), options: Any = None, **facts: Any) -> Submission:
    asked, options = job_ or job(), SubmitOptions(**(options or {}))
    files = replace(inspect_files(asked, options), here=here)
    snapshot = Snapshot(cluster(**{**H100, **facts}), files, models=find_model_configs(asked, options, files))
    return plan_job(asked, options, snapshot)


def test_the_verdict_goes_with_the_job() -> None:
    memory = planned().memory
    assert memory is not None
    assert memory.card.name == "H100 of 80 GB"
    assert memory.estimate.machine.host_gib is None
    assert memory.to_json()["parameters"] == 7_615_616_512
    assert planned(memory_bytes=512 << 30).memory.estimate.machine.host_gib == 512  # type: ignore[union-attr]


def test_too_little_memory_is_a_warning_and_the_job_is_sent() -> None:
    submission = planned(gpu="16GB:8", nodes=1)
    [warning] = [warning for warning in submission.warnings if warning.startswith("memory does not fit")]
    assert "It fits with: " in warning
    assert submission.argv


def test_a_node_whose_memory_and_disk_are_too_small() -> None:
    submission = planned(memory_bytes=40 << 30, disk_bytes=20 << 30, options={"unchecked": True})
    [warning] = [warning for warning in submission.warnings if warning.startswith("memory ")]
    assert "memory does not fit: a checkpoint needs 85 of 40 GiB" in warning
    assert "It fits with: --set memory=100GB.. --set disk=210GB.." in warning


SAVING = job(overrides={**job().overrides, "trainer.save_freq": 5})
FREE = 30 << 30
"""Less than half of one save of a 7B model, and more than a quarter."""


@pytest.mark.parametrize(
    ("facts", "options", "is_refused"),
    [
        ({"nodes": 2}, {}, True),
        ({"nodes": 4}, {}, False),
        ({"nodes": 4, "shared_checkpoints": True}, {}, True),
        ({"nodes": 2}, {"unchecked": True}, False),
        ({"nodes": 2}, {"overrides": {"trainer.save_freq": -1}}, False),
        ({"nodes": 2}, {"overrides": {"trainer.default_local_dir": "/large/run"}}, False),  # its room is not known
        ({"nodes": 2}, {"overrides": {"trainer.default_local_dir": "/checkpoints/mine"}}, True),
        ({"nodes": 2}, {"model": "me/Qwen2.5-7B-Instruct"}, False),  # may be another model of that name
        ({"nodes": 4}, {"overrides": {"trainer.nnodes": 1}}, True),  # the disks of the others are no help
        ({"nodes": 2, "gpu": "Q900:8"}, {}, True),  # a card of which nothing is known
        ({"nodes": 4, "gpu": "Q900:8"}, {}, False),
    ],
)
def test_a_save_that_has_no_room_on_a_cluster_that_is_up(
    facts: dict[str, Any], options: dict[str, Any], is_refused: bool
) -> None:
    def plan() -> Submission:
        return planned(SAVING, options=options, disk_bytes=FREE, **facts)

    if not is_refused:
        assert plan().argv
        return
    with pytest.raises(InputError, match=r"one save takes .* and /checkpoints of cluster .* has room for 32") as caught:
        plan()
    assert "checkpoints prune" in str(caught.value.hint)
    assert "--unchecked" in str(caught.value.hint)


KEPT = "trainer.max_actor_ckpt_to_keep"
STEPS = "trainer.total_training_steps"


@pytest.mark.parametrize(
    ("facts", "overrides", "free_gib", "refused", "said"),
    [
        ({"nodes": 2}, {STEPS: 20}, 60, r"45\.7 GB on each node, two take 91\.4 GB, and .* room for 64\.4 GB", ""),
        ({"nodes": 2}, {STEPS: 5}, 60, "", ""),
        ({"nodes": 2}, {}, 60, "", "1 save of 45.7 GB on each node, and the run may keep more. Remove old ones"),
        ({"nodes": 1}, {STEPS: 100, KEPT: 1}, 120, "two take 183 GB", ""),
        ({"nodes": 1}, {STEPS: 100, KEPT: 1}, 200, "", ""),
        ({"nodes": 1}, {STEPS: 100}, 200, "", f"2 saves of 91.4 GB, and the run keeps 20. Keep fewer: {KEPT}=2"),
        ({"nodes": 1}, {STEPS: 100, KEPT: 2}, 200, "", ""),
        ({"nodes": 2, "shared_checkpoints": True}, {STEPS: 100, KEPT: 2}, 200, "", ""),
        # the second node removes none
        ({"nodes": 2}, {STEPS: 100, KEPT: 1}, 100, "", "2 saves of 45.7 GB on each node, and the run keeps 20. Remove"),
    ],
)  # fmt: skip
def test_room_for_the_saves_that_are_there_at_once(
    facts: dict[str, Any], overrides: dict[str, Any], free_gib: int, refused: str, said: str
) -> None:
    def plan() -> Submission:
        return planned(SAVING, options={"overrides": overrides}, disk_bytes=free_gib << 30, **facts)

    if refused:
        with pytest.raises(InputError, match=refused):
            plan()
        return
    warnings = [warning for warning in plan().warnings if warning.startswith("/checkpoints has room")]
    assert (len(warnings), said in "".join(warnings)) == (bool(said), True)


@pytest.mark.parametrize(
    ("facts", "is_warned"),
    [
        ({}, True),
        ({"shared_checkpoints": True, "disk_bytes": 95 << 30}, False),
        ({"disk_bytes": 400 << 30}, False),
        ({"provider": "local"}, False),
    ],
)
def test_a_durable_job_needs_room_for_the_copies_of_another_node(facts: dict[str, Any], is_warned: bool) -> None:
    submission = planned(
        SAVING, options={"durable": True}, **{"provider": "dstack", "nodes": 2, "disk_bytes": 80 << 30, **facts}
    )

    warned = [warning for warning in submission.warnings if "its copy from another node as much again" in warning]
    assert len(warned) == is_warned
    assert all("a step takes 45." in warning and "85.9 GB are free" in warning for warning in warned)


def test_a_critic_that_is_only_called_like_a_known_model_refuses_nothing() -> None:
    critic = {"critic.enable": True, "critic.ppo_micro_batch_size_per_gpu": 1, "algorithm.adv_estimator": "gae"}
    facts: dict[str, Any] = {"disk_bytes": 60 << 30, "nodes": 2}
    for path, is_refused in (("me/Qwen2.5-7B-Instruct", False), ("Qwen/Qwen2.5-7B-Instruct", True)):
        with_critic = job(overrides={**SAVING.overrides, **critic, "critic.model.path": path})
        with pytest.raises(InputError, match="one save takes") if is_refused else nullcontext():
            planned(with_critic, **facts)


def test_a_job_that_never_saves_needs_no_room_for_a_save() -> None:
    never = job(overrides={**job().overrides, "trainer.save_freq": -1})
    submission = planned(never, disk_bytes=FREE, nodes=2)
    assert not any(warning.startswith("memory ") for warning in submission.warnings)
    assert submission.memory is not None
    assert not {phase.group for phase in submission.memory.estimate.phases} & {"save", "disk"}
    host = next(phase for phase in submission.memory.estimate.phases if phase.moment == "memory of a node")
    assert "copies of a save" not in [term.what for term in host.terms]


@pytest.mark.parametrize(
    ("facts", "says"),
    [({"gpu": ""}, "memory (card unknown)"), ({"gpu": "Unheard:8"}, "memory (card unknown)")],
)
def test_what_is_not_known_is_said(facts: dict[str, Any], says: str) -> None:
    submission = planned(**facts)
    assert submission.not_checked == (says,)
    assert submission.memory is None


def test_a_model_that_nothing_here_knows() -> None:
    submission = planned(job(model="me/unheard-of"))
    assert submission.not_checked == ("memory and heads (config.json of me/unheard-of unknown)",)


def test_on_cpus_nothing_is_estimated() -> None:
    submission = planned(job(device="cpu"), device="cpu")
    assert (submission.memory, submission.not_checked) == (None, ())


def test_heads_of_a_folder_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(LLAMA))
    tp = {"actor_rollout_ref.rollout.tensor_model_parallel_size": 8}
    with pytest.raises(InputError, match=r"=8 does not divide the 12 attention heads of \./mine") as caught:
        planned(here=tmp_path, options={"model": "./mine", "overrides": tp})
    assert "actor_rollout_ref.rollout.tensor_model_parallel_size=4" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("model", "overrides", "said"),
    [
        (MODEL, {}, []),
        ("Qwen/Qwen2.5-VL-7B-Instruct", {}, ["not counted: tokens of images"]),
        (
            "Qwen/Qwen3-30B-A3B",
            {"model_engine": "megatron", f"{MEGATRON}.expert_model_parallel_size": 8},
            ["not counted: buffers that dispatch tokens to experts"],
        ),
        (
            MODEL,
            {
                "model_engine": "megatron",
                f"{MEGATRON}.pipeline_model_parallel_size": 2,
                f"{MEGATRON}.virtual_pipeline_model_parallel_size": 2,
            },
            ["not counted: virtual pipeline stages"],
        ),
    ],
)
def test_what_the_estimate_leaves_out_is_said(model: str, overrides: dict[str, Any], said: list[str]) -> None:
    memory = planned(job(model=model), options={"overrides": overrides, "unchecked": True}).memory
    assert memory is not None
    assert [note for note in memory.notes if note.startswith("not counted")] == said


def test_a_folder_that_is_called_like_a_model_is_a_guess() -> None:
    tp = {"actor_rollout_ref.rollout.tensor_model_parallel_size": 8}
    model = {"actor_rollout_ref.model.path": "/models/Qwen2.5-7B-Instruct"}
    submission = planned(options={"overrides": {**model, **tp}})
    assert any("does not divide the 28 attention heads" in warning for warning in submission.warnings)
    memory = submission.memory
    assert memory is not None
    assert f"the model's sizes are from {MODEL} in cloudrl's table of models" in memory.notes


def test_the_cache_of_hugging_face(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--me--llama" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "hub" / "models--me--llama" / "refs").mkdir()
    (tmp_path / "hub" / "models--me--llama" / "refs" / "main").write_text("abc")
    asked, options = job(model="me/llama"), SubmitOptions()
    files = inspect_files(asked, options)
    [found] = find_model_configs(asked, options, files, environment={"HF_HOME": str(tmp_path)}).values()
    assert (found.name, found.source, found.heads) == ("me/llama", "the Hugging Face cache", 12)
    (snapshot / "config.json").write_text("{")
    assert find_model_configs(asked, options, files, environment={"HF_HOME": str(tmp_path)}) == {}


def test_prompts_of_a_parquet_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    monkeypatch.chdir(tmp_path)
    prompts = [[{"role": "user", "content": "x" * 400}], [{"role": "user", "content": "x" * 800}]]
    pq.write_table(pa.table({"prompt": prompts}), tmp_path / "mine.parquet")
    asked, options = job(), SubmitOptions(overrides={"data.train_files": "./mine.parquet"})
    found = find_prompt_lengths(asked, options, inspect_files(asked, options))
    assert found == PromptLengths(
        160.0, "prompts of ./mine.parquet have 160 tokens in the mean, at 4 characters a token", "./mine.parquet"
    )
    (tmp_path / "mine.parquet").write_bytes(b"PAR1")
    assert find_prompt_lengths(asked, options, inspect_files(asked, options)) is None


def test_prompts_are_counted_by_the_tokenizer_of_a_cluster_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa, tokenizers = pytest.importorskip("pyarrow"), pytest.importorskip("tokenizers")
    import pyarrow.parquet as pq

    monkeypatch.chdir(tmp_path)
    prompts = [[{"role": "user", "content": "1 + 1"}], [{"role": "user", "content": "1"}]]
    pq.write_table(pa.table({"prompt": prompts}), tmp_path / "mine.parquet")
    letters = tokenizers.models.WordLevel({"1": 0, "+": 1, "?": 2}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(letters)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    asked, options = job(model="tiny-adder"), SubmitOptions(data=("./mine.parquet",))
    found = find_prompt_lengths(asked, options, inspect_files(asked, options), models={"tiny-adder": str(tmp_path)})
    assert found is not None
    assert (found.name, found.tokens) == ("./mine.parquet", (3, 1))
    assert "by the model's tokenizer" in found.source


def test_an_earlier_run_gives_the_lengths(tmp_path: Path) -> None:
    run = RunMemory("grpo-1", "grpo", MODEL, "1 x 8 x H100", (28.0, 29.0, 34.0))
    assert keep_run(run, tmp_path) == run
    keep_run(RunMemory("grpo-1", allocated_gib=28.5, prompt_tokens=90.0, answer_tokens=210.0), tmp_path)
    [kept] = runs = read_runs(tmp_path)
    assert (kept.model, kept.allocated_gib) == (MODEL, 28.5)
    asked, options = job(), SubmitOptions()
    memory = plan_job(asked, options, Snapshot(cluster(**H100), inspect_files(asked, options), runs=runs)).memory
    assert memory is not None
    assert memory.estimate.work.lengths.mean == 300
    assert "sequences count as 300 tokens in the mean, as those of run grpo-1" in memory.notes
    assert memory.notes[-1].startswith("run grpo-1 on 1 x 8 x H100: training used at most 28.5 GiB of a GPU")


def test_what_is_kept_of_others_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "memory.jsonl").write_bytes(b"\xff\n{\n")
    assert read_runs(tmp_path) == ()
    assert keep_run(RunMemory("a", "grpo"), tmp_path) == RunMemory("a", "grpo")
    assert read_runs(tmp_path) == (RunMemory("a", "grpo"),)


NOVEL = {**LLAMA, "architectures": ["NovelForCausalLM"], "num_attention_heads": 16}


@pytest.mark.parametrize(
    ("versions", "warns", "skips"),
    [
        ({"vllm": "0.24.0"}, True, False),
        ({"vllm": "0.24.1"}, False, True),
        ({}, False, True),
    ],
)
def test_an_architecture_that_the_rollout_engine_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], warns: bool, skips: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(NOVEL))
    submission = planned(here=tmp_path, options={"model": "./mine"}, rollout_versions=versions)
    assert any("vLLM 0.24.0 has no class NovelForCausalLM" in warning for warning in submission.warnings) is warns
    assert any("whether vLLM has NovelForCausalLM" in each for each in submission.not_checked) is skips
