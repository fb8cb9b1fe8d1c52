"""Parallelism, lengths and number formats against the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from memory_truth import setting_of

from cloudrl.verl.keys import ACTOR, CRITIC, MODEL, ROLLOUT
from cloudrl.verl.memory.cards import card_of
from cloudrl.verl.model_config import ModelConfig, known_model
from cloudrl.verl.model_rules import Models, model_notes, model_problems
from cloudrl.verl.setting import Setting, applied

QWEN_7B, MOE, TIED = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen2.5-3B"
MEGATRON = f"{ACTOR}.megatron"
EVERY_MEGATRON = {"engine": "megatron", "critic": False, "ref": False}


def of(name: str, *, critic: str | None = None, gpu: str = "H100:8", **changes: Any) -> Models:
    actor = known_model(name)
    assert actor is not None
    actor = ModelConfig(actor.name, {**actor.values, **changes}, actor.source)
    return Models(actor, known_model(critic) if critic else None, card_of(gpu))


def setting(changes: Mapping[str, Any], **job: Any) -> Setting:
    return applied(setting_of({"ref": False, "dyn": True, "verl": "0.9.1", **job}), changes)


@pytest.mark.parametrize(
    ("name", "job", "changes", "says", "hint"),
    [
        (QWEN_7B, {"tp": 8}, {}, "tensor_model_parallel_size=8 does not divide the 28 attention heads of", "=4"),
        (QWEN_7B, {"tp": 3}, {}, "=3 does not divide the 28 attention heads", "=1"),
        (QWEN_7B, {"sp": 8}, {}, "ulysses_sequence_parallel_size=8 does not divide the 28 attention heads", "=4"),
        ("microsoft/phi-4", {"tp": 4}, {}, "=4 does not divide the 10 heads of keys and values", "=2"),
        (
            QWEN_7B, EVERY_MEGATRON, {f"{MEGATRON}.tensor_model_parallel_size": 8},
            "megatron.tensor_model_parallel_size=8 does not divide the 28", "megatron.tensor_model_parallel_size=4",
        ),
        (
            QWEN_7B, EVERY_MEGATRON, {f"{MEGATRON}.pipeline_model_parallel_size": 8},
            "pipeline_model_parallel_size=8 does not divide the 28 layers", "pipeline_model_parallel_size=4",
        ),
        (
            QWEN_7B, EVERY_MEGATRON, {f"{MEGATRON}.expert_model_parallel_size": 2},
            "expert_model_parallel_size=2, and Qwen/Qwen2.5-7B-Instruct has no experts", "=1",
        ),
        (
            MOE, EVERY_MEGATRON, {f"{MEGATRON}.expert_model_parallel_size": 3},
            "expert_model_parallel_size=3 does not divide the 128 experts", "expert_model_parallel_size=1",
        ),
        (
            "google/gemma-2-2b", EVERY_MEGATRON, {f"{MEGATRON}.use_mbridge": False},
            "verl itself builds no Gemma2ForCausalLM for Megatron", f"{MEGATRON}.use_mbridge=True",
        ),
        (
            QWEN_7B, {}, {f"{ROLLOUT}.max_model_len": 40000},
            "max_model_len=40000 is more than the 32768 positions of", f"{ROLLOUT}.max_model_len=32768",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_with_the_model(
    name: str, job: dict[str, Any], changes: dict[str, Any], says: str, hint: str
) -> None:
    models, found = of(name), setting(changes, **job)
    [problem] = model_problems(found, models)
    assert says in problem.text
    assert problem.hint.endswith(hint)
    key, _, value = problem.hint.partition("=")
    fixed = applied(found, {key: int(value) if value.isdecimal() else value == "True"})
    assert model_problems(fixed, models) == ()


@pytest.mark.parametrize(
    ("name", "job", "changes"),
    [
        (QWEN_7B, {"tp": 4, "sp": 4}, {}),
        (TIED, {"tp": 8, "sp": 8}, {}),  # each of 2 heads of keys and values is on 4 GPUs
        ("deepseek-ai/DeepSeek-V3", {"tp": 16}, {}),  # latent attention has no heads of keys
        (MOE, EVERY_MEGATRON, {f"{MEGATRON}.expert_model_parallel_size": 8}),
        (
            QWEN_7B, EVERY_MEGATRON,
            {f"{MEGATRON}.pipeline_model_parallel_size": 8,
             f"{MEGATRON}.override_transformer_config.num_layers_in_first_pipeline_stage": 7},
        ),
        (QWEN_7B, {}, {f"{ROLLOUT}.max_model_len": 40000, f"{MODEL}.override_config": {"rope_scaling": {"factor": 4}}}),
    ],
)  # fmt: skip
def test_what_works(name: str, job: dict[str, Any], changes: dict[str, Any]) -> None:
    assert model_problems(setting(changes, **job), of(name)) == ()


@pytest.mark.parametrize(
    ("models", "job", "changes", "says"),
    [
        (of("deepseek-ai/deepseek-math-7b-rl"), {"prompt": 1024, "response": 8192}, {},
         "9216 tokens, and the rollout ends at 4096 (positions of deepseek-ai/deepseek-math-7b-rl)"),
        (of("deepseek-ai/deepseek-math-7b-rl"), {"prompt": 1024, "response": 8192}, {},
         "data.max_response_length=3072 never cuts"),
        (of("deepseek-ai/deepseek-math-7b-rl"), {"prompt": 4096}, {}, "a prompt of 4096 tokens or more ends the job"),
        (of(QWEN_7B), {"response": 8192}, {f"{ROLLOUT}.max_model_len": 4096}, f"at 4096 ({ROLLOUT}.max_model_len)"),
        (of(QWEN_7B, gpu="A100:80GB:8"), {}, {f"{ROLLOUT}.quantization": "fp8"}, "a A100 of 80 GB has no fp8"),
        (of(QWEN_7B, quantization_config={"quant_method": "awq"}), {}, {}, "are quantized (awq)"),
        (of(QWEN_7B, critic="meta-llama/Llama-3.1-8B"), {}, {}, f"{CRITIC}.model.path={QWEN_7B} has the same one"),
        (of("XiaomiMiMo/MiMo-7B-RL"), EVERY_MEGATRON, {}, "whether Megatron's bridge has MiMoForCausalLM"),
    ],
)  # fmt: skip
def test_what_the_user_should_know(models: Models, job: dict[str, Any], changes: dict[str, Any], says: str) -> None:
    [note] = model_notes(setting(changes, **job), models)
    assert says in note


def test_a_teacher_with_other_tokens() -> None:
    teachers = tuple(filter(None, map(known_model, ("meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-1.5B"))))
    [note] = model_notes(setting({}), Models(of(QWEN_7B).actor, None, card_of("H100:8"), teachers))
    assert "the teacher meta-llama/Llama-3.1-8B one of 128256" in note


def test_a_table_that_is_padded_to_another_size_is_the_same_vocabulary() -> None:
    assert model_notes(setting({}), of(QWEN_7B, critic="Qwen/Qwen2.5-0.5B")) == ()


def test_a_card_without_bf16() -> None:
    [problem] = model_problems(setting({}), of(QWEN_7B, gpu="T4:1"))
    assert problem.text == f"{ROLLOUT}.dtype=bfloat16: a T4 has no bf16"
    assert problem.hint == f"{ROLLOUT}.dtype=float16 {ACTOR}.fsdp_config.dtype=float16"


def test_two_architectures_in_one_config() -> None:
    [problem] = model_problems(setting({}), of(QWEN_7B, architectures=["Qwen2ForCausalLM", "Other"]))
    assert "names 2 architectures" in problem.text


def test_nothing_is_said_of_a_usual_job() -> None:
    assert model_notes(setting({}), of(QWEN_7B)) == ()
