"""What became of keys of older releases of verl."""

from __future__ import annotations

import pytest

from cloudrl.verl.composition import compose, keys_of_engine
from cloudrl.verl.key_history import change_of, rows
from cloudrl.verl.releases import RELEASE

HERE = keys_of_engine(RELEASE.verl, "dp") | keys_of_engine(RELEASE.verl, "megatron")
SAID = "verl 0.9.1 has no such key"


def hint(*overrides: str) -> list[tuple[str, str]]:
    """Text behind the usual words, and hint, of each problem."""
    problems = compose(RELEASE.verl, overrides).problems
    return [(problem.text.partition(SAID)[2].lstrip("; "), problem.hint) for problem in problems]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.old)
def test_a_row_names_its_source_and_a_key_that_the_default_release_has_no_more(row) -> None:
    assert row.source
    assert row.old not in HERE
    assert not row.to or any(
        target.startswith("+") or "*" in target or target in HERE or row.since != "0.9.1" for target in row.to
    )


@pytest.mark.parametrize(
    ("override", "said", "remedy"),
    [
        ("actor_rollout_ref.rollout.n_val=4", "since verl 0.3 it is", "actor_rollout_ref.rollout.val_kwargs.n=4"),
        (
            "actor_rollout_ref.rollout.val_temperature=0.3",
            "since verl 0.3 it is",
            "actor_rollout_ref.rollout.val_kwargs.temperature=0.3",
        ),
        ("trainer.remove_previous_ckpt_in_save=True", "since verl 0.3", "trainer.max_actor_ckpt_to_keep=1"),
        ("trainer.remove_previous_ckpt_in_save=False", "since verl 0.3", "trainer.max_actor_ckpt_to_keep=null"),
        ("ray_init.num_cpus=16", "since verl 0.6", "ray_kwargs.ray_init.num_cpus=16"),
        ("critic.model.fsdp_config.param_offload=True", "since verl 0.8", "critic.fsdp.param_offload=True"),
        ("critic.model.fsdp_config.grad_offload=True", "removed in verl 0.3", "~critic.model.fsdp_config.grad_offload"),
        (
            "actor_rollout_ref.ref.fsdp_config.grad_offload=True",
            "removed in verl 0.3, leave it out",
            "~actor_rollout_ref.ref.fsdp_config.grad_offload",
        ),
        ("reward_model.use_reward_loop=False", "removed in verl 0.8", "~reward_model.use_reward_loop"),
        (
            "actor_rollout_ref.rollout.multi_turn.interaction_config_path=/x.yml",
            "removed in verl 0.8",
            "~actor_rollout_ref.rollout.multi_turn.interaction_config_path",
        ),
        (
            "reward_model.overlong_buffer.penalty_factor=1.0",
            "since verl 0.8",
            "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0",
        ),
        (
            "data.enable_thinking=False",
            "since verl 0.5",
            "+data.apply_chat_template_kwargs.enable_thinking=False",
        ),
        (
            "actor_rollout_ref.rollout.engine_kwargs.swap_space=8",
            "since verl 0.4",
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=8",
        ),
        ("trainer.max_ckpt_to_keep=2", "", "trainer.max_actor_ckpt_to_keep=2"),
        ("algorithm.rollout_is_level=geometric", "", "algorithm.rollout_correction.rollout_is=sequence"),
        ("algorithm.rollout_correction.use_policy_gradient=true", "", "rollout_correction.loss_type=reinforce"),
        ("actor_rollout_ref.actor.profile.step_start=3", "changed in verl 0.6", "the steps are a list"),
        ("critic.kl_ctrl.kl_coef=0.01", "since verl 0.5", "algorithm.kl_ctrl.kl_coef=0.01"),
        (
            "actor_rollout_ref.actor.use_token_level_loss=True",
            "since verl 0.3",
            "actor_rollout_ref.actor.loss_agg_mode=token-mean",
        ),
        ("actor_rollout_ref.rollout.micro_batch_size=8", "removed in verl 0.2", "~actor_rollout_ref.rollout.micro"),
        ("actor_rollout_ref.rollout.limit_images=5", "", "+actor_rollout_ref.rollout.limit_images=5"),
    ],
)  # fmt: skip
def test_history_comes_before_spelling(override: str, said: str, remedy: str) -> None:
    [(text, what)] = hint(override)
    assert said in text
    assert remedy in what


def test_a_hint_of_the_history_is_accepted_in_its_place() -> None:
    """Each row whose old key is one key, with a value that its new place takes."""
    for row in rows():
        if "*" in row.old or not row.to:
            continue
        old = next(iter(row.values), "true")
        change = change_of(row.old, RELEASE.verl, HERE.__contains__)
        assert change is not None, row.old
        if not change.key:
            continue
        is_megatrons = change.key.lstrip("+") not in keys_of_engine(RELEASE.verl, "dp") and ".megatron." in change.key
        engine = ("model_engine=megatron",) if is_megatrons else ()
        assert compose(RELEASE.verl, (*engine, f"{change.key}={change.value(old)}")).problems == (), row.old


def test_an_old_release_has_not_lost_its_keys_yet() -> None:
    key = "critic.model.fsdp_config.param_offload"
    assert change_of(key, "0.7.1", lambda _: True) is None
    assert change_of(key, "0.8.0", lambda _: True) is not None


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.curiosity.enable=False",
        "actor_rollout_ref.actor.adaptive_entropy.target_entropy=0.2",
        "actor_rollout_ref.actor.my_key=1",
    ],
)
def test_for_a_key_of_a_fork_nothing_is_suggested(override: str) -> None:
    assert hint(override) == [("", "")]


def test_a_key_that_the_job_sets_is_not_suggested() -> None:
    [(_, what)] = hint("trainer.save_freq=20", "trainer.stats_save_freq=1")
    assert "trainer.save_freq" not in what
    [(text, what)] = hint("actor_rollout_ref.rollout.val_kwargs.n=2", "actor_rollout_ref.rollout.n_val=4")
    assert text.endswith("which the job sets, too")
    assert what == "~actor_rollout_ref.rollout.n_val"


def test_a_suggestion_takes_a_value_of_that_type() -> None:
    [(_, what)] = hint("data.apply_chat_template=True")
    assert "apply_chat_template_kwargs" not in what
    assert hint("trainer.save_frequ=5") == [("", "trainer.save_freq=5")]
    assert "trainer.save_freq=" not in hint("trainer.save_frequ=[1]")[0][1]


def test_several_keys_of_a_fork_are_one_message() -> None:
    keys = [f"algorithm.mine.part{index}=1" for index in range(4)]
    *each, (text, what) = hint(*keys)
    assert each == [("", "")] * 4
    assert compose(RELEASE.verl, tuple(keys)).problems[-1].text.startswith("4 keys (algorithm.mine.part0, ")
    assert "--working-dir FOLDER" in what
    assert len(hint(*keys[:2])) == 2, text


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("lora_rank=8", "actor_rollout_ref.model.lora_rank=8"),
        ("model.lora_rank=8", "actor_rollout_ref.model.lora_rank=8"),
        ("actor.fsdp_config.param_offload=True", "actor_rollout_ref.actor.fsdp_config.param_offload=True"),
        ("ref.optimizer_offload=True", "actor_rollout_ref.ref.fsdp_config.optimizer_offload=True"),
        ("actor_rollout_ref.actor.lr=1e-6", "actor_rollout_ref.actor.optim.lr=1e-6"),
        ("train_batch_size=64", "data.train_batch_size=64"),
        ("total_epochs=2", "trainer.total_epochs=2"),
    ],
)
def test_a_key_without_its_sections_has_its_place(override: str, remedy: str) -> None:
    assert hint(override) == [("", remedy)]


def test_what_is_suggested_can_be_pasted_into_a_shell() -> None:
    [(_, what)] = hint('data.train_file=["/a b.parquet"]')
    assert what == """'data.train_files=["/a b.parquet"]'"""
