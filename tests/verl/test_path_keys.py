"""The list of keys under which verl reads, against the verl that is installed."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from cloudrl.verl.keys import REWARD_FUNCTION, REWARD_NAME, REWARD_PATH, PathKind, kind_of, name_key

LOOKS_LIKE_A_PATH = ("path", "paths", "file", "files", "dir")
LEFT_OUT = {
    # written, not read
    "global_profiler.save_path", "actor_rollout_ref.actor.profiler.save_path",
    "actor_rollout_ref.ref.profiler.save_path", "actor_rollout_ref.rollout.profiler.save_path",
    "critic.profiler.save_path", "actor_rollout_ref.rollout.prometheus.file", "trainer.rollout_data_dir",
    "trainer.validation_data_dir", "trainer.default_hdfs_dir", "trainer.default_local_dir", "skip.rollout.dump_dir",
    "skip.rollout_tq.dump_dir", "skip.async_rollout.dump_dir", "ray_kwargs.timeline_json_file",
    "actor_rollout_ref.actor.megatron.router_replay.record_file",
    "actor_rollout_ref.ref.megatron.router_replay.record_file", "critic.megatron.router_replay.record_file",
    # what a run on the nodes has left on the nodes
    "trainer.resume_from_path", "actor_rollout_ref.actor.megatron.dist_checkpointing_path",
    "actor_rollout_ref.ref.megatron.dist_checkpointing_path", "critic.megatron.dist_checkpointing_path",
    "actor_rollout_ref.actor.megatron.router_replay.replay_file",
    "actor_rollout_ref.ref.megatron.router_replay.replay_file", "critic.megatron.router_replay.replay_file",
}  # fmt: skip


def config_keys(name: str) -> dict[str, Any]:
    """Bare key -> value of one of verl's own configurations."""
    found_verl = importlib.util.find_spec("verl")  # not imported: that takes seconds
    if found_verl is None or found_verl.origin is None:
        pytest.skip("verl is not installed")
    from omegaconf import OmegaConf

    path = Path(found_verl.origin).parent / "trainer" / "config" / name
    found: dict[str, Any] = {}

    def walk(node: dict[str, Any], above: str) -> None:
        for key, value in node.items():
            if isinstance(value, dict):
                walk(value, f"{above}{key}.")
            else:
                found[f"{above}{key}"] = value

    walk(OmegaConf.to_container(OmegaConf.load(path), resolve=False), "")
    return found


@pytest.mark.parametrize("name", ["_generated_ppo_trainer.yaml", "_generated_ppo_megatron_trainer.yaml"])
def test_every_path_of_verl_is_known_or_left_out_on_purpose(name: str):
    keys = [key for key in config_keys(name) if key.split(".")[-1].split("_")[-1] in LOOKS_LIKE_A_PATH]

    assert len(keys) > 30
    unknown = [key for key in keys if kind_of(key) is None and key not in LEFT_OUT]
    assert unknown == []
    assert [key for key in LEFT_OUT if kind_of(key) is not None] == []


def test_the_keys_of_the_reward():
    keys = config_keys("_generated_ppo_trainer.yaml")
    assert keys[REWARD_PATH] is None
    assert keys[REWARD_NAME] == REWARD_FUNCTION
    code = [key for key in keys if kind_of(key) is PathKind.CODE]
    assert {name_key(key) for key in code} <= set(keys)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("data.train_files", PathKind.DATA),
        ("actor_rollout_ref.model.path", PathKind.MODEL),
        ("critic.model.tokenizer_path", PathKind.MODEL),
        ("reward.custom_reward_function.path", PathKind.CODE),
        ("custom_reward_function.path", PathKind.CODE),
        ("distillation.teacher_models.mine.model_path", PathKind.MODEL),
        ("actor_rollout_ref.rollout.multi_turn.tool_config_path", PathKind.TOOLS),
        ("actor_rollout_ref.rollout.multi_turn.function_tool_path", PathKind.FILE),
        ("trainer.default_local_dir", None),
        ("trainer.project_name", None),
        ("data.prompt_key", None),
        ("xdata.train_files", None),
        ("data.train_filesx", None),
    ],
)
def test_kinds(key: str, kind: PathKind | None):
    assert kind_of(key) is kind


def test_the_name_beside_a_path():
    assert name_key("data.custom_cls.path") == "data.custom_cls.name"
    assert name_key("actor_rollout_ref.model.path") is None
