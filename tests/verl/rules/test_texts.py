"""Lists, mappings and numbers where verl reads a path or a name."""

from __future__ import annotations

from typing import Any

import pytest
from verl_settings import problems

MODEL, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        (f"{MODEL}.path", "[1]", ""),
        (f"{MODEL}.path", "[/m]", f"{MODEL}.path=/m"),
        (f"{MODEL}.path", 3, ""),
        (f"{MODEL}.path", "/m/", f"{MODEL}.path=/m"),
        ("critic.model.path", "{a:1}", ""),
        (f"{MODEL}.tokenizer_path", "[1]", f"{MODEL}.tokenizer_path=null"),
        (f"{MODEL}.external_lib", "[1]", f"{MODEL}.external_lib=null"),
        ("reward.custom_reward_function.path", 3, "reward.custom_reward_function.path=null"),
        ("reward.custom_reward_function.path", "[a.py]", "reward.custom_reward_function.path=a.py"),
        ("trainer.default_local_dir", "[1]", ""),
        ("trainer.rollout_data_dir", "[1]", "trainer.rollout_data_dir=null"),
        ("data.prompt_key", "null", "data.prompt_key=prompt"),
        (f"{ROLLOUT}.multi_turn.tool_config_path", "{a:1}", f"{ROLLOUT}.multi_turn.tool_config_path=null"),
        (f"{ROLLOUT}.agent.default_agent_loop", 1, f"{ROLLOUT}.agent.default_agent_loop=single_turn_agent"),
    ],
)
def test_what_is_no_text_is_refused(key: str, value: Any, hint: str) -> None:
    [problem] = problems(f"{key}={value}")
    assert problem.text.startswith(f"{key}=")
    assert problem.hint == hint
    if hint:
        assert problems(hint) == ()


@pytest.mark.parametrize(
    "changes",
    [
        (f"{MODEL}.external_lib=[json,math]",),
        (f"{MODEL}.lora_adapter_path=[1]",),  # verl's FSDP engine reads it only with a rank
        ("trainer.resume_mode=disable", "trainer.default_local_dir=[1]"),  # nothing is saved either
        ("trainer.val_only=True", "trainer.rollout_data_dir=[1]"),
        ("trainer.v1.sampler.custom_sampler.path=[1]",),  # verl reads it only beside a name
        (f"{ROLLOUT}.agent.default_agent_loop=null",),  # each row of the data may name its own
    ],
)
def test_what_is_never_read_is_not_refused(changes: tuple[str, ...]) -> None:
    assert problems(*changes) == ()


def test_an_adapter_is_read_with_a_rank() -> None:
    [problem] = problems(f"{MODEL}.lora_rank=8", f"{MODEL}.lora_adapter_path=[1]")
    assert problem.hint == f"{MODEL}.lora_adapter_path=null"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "[1]"),  # a list is no key of a mapping
        ("actor_rollout_ref.actor.optim.override_optimizer_config", 3),
        (f"{ROLLOUT}.n_gpus_per_node", "[1]"),
        (f"{ROLLOUT}.log_prob_use_dynamic_bsz", "[1]"),
        ("data.seed", "text"),
        ("data.train_files", "/data/train"),
        ("data.train_max_samples", 1.5),
        ("trainer.checkpoint_callback_class", "Mine"),
    ],
)
def test_other_values_of_a_wrong_kind(key: str, value: Any) -> None:
    problem, *_ = problems(f"{key}={value}")
    assert key in problem.text
