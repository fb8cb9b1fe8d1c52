"""The recipe for Search-R1's fork of verl 0.1: Hydra takes it with the fork's own keys, and nothing newer is added."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf
from planning import cluster, plan

from cloudrl import recipes
from cloudrl.errors import InputError
from cloudrl.jobs import Submission, SubmitOptions
from cloudrl.spec import HydraText

KEYS = [
    line for line in (Path(__file__).parent / "search-r1-keys.txt").read_text().splitlines() if not line.startswith("#")
]
FOLDER = "/checkpoints/run"


def planned(
    overrides: Mapping[str, Any] | None = None,
    *,
    recipe: str = "search-r1",
    env: Mapping[str, str] | None = None,
    **changes: Any,
) -> Submission:
    """The recipe on its nodes with eight GPUs each whose jobs bring Search-R1 along, but for the changes."""
    job = recipes.load(recipe)
    lab: dict[str, Any] = {
        "nodes": job.nodes,
        "data": {"nq_search": {"train": "/d/train.parquet", "test": "/d/test.parquet"}},
        "models": {job.model: "/m"},
        "verl_version": "0.1",
        "rollouts": ("vllm",),
    }
    options = SubmitOptions(name="run", overrides=overrides or {}, env=env or {})
    return plan(job, cluster(**{**lab, **changes}), options)


def composed(words: list[str]) -> DictConfig:
    """What Hydra makes of overrides over the fork's keys; its own function, on a configuration without values."""
    config = OmegaConf.create()
    for key in KEYS:
        OmegaConf.update(config, key, None, force_add=True)
    OmegaConf.set_struct(config, True)
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(words), config)
    return config


def words_of(submission: Submission) -> list[str]:
    assert submission.argv[:3] == ("python3", "-m", "verl.trainer.main_ppo")
    return list(submission.argv[3:])


@pytest.fixture
def config() -> DictConfig:
    return composed(words_of(planned()))


def test_the_forks_hydra_takes_it(config):
    assert config.retriever.url == "http://127.0.0.1:8000/retrieve"
    assert (config.retriever.topk, config.max_turns) == (3, 4)
    assert config.actor_rollout_ref.actor.state_masking is True
    assert (config.trainer.val_only, config.trainer.val_before_train) == (False, False)


@pytest.mark.parametrize(("size", "rate", "replica", "offloads"), [("32b", 2e-7, 2, False), ("72b", 1e-7, 4, True)])
def test_the_forks_hydra_takes_its_larger_models_by_grpo(size, rate, replica, offloads):
    submission = planned(recipe=f"search-r1-grpo-{size}")
    config = composed(words_of(submission))
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (4, 8)
    assert (config.algorithm.adv_estimator, actor.use_kl_loss, rollout.n_agent) == ("grpo", True, 5)
    assert (actor.optim.lr, rollout.tensor_model_parallel_size) == (rate, replica)
    assert {value for key, value in actor.fsdp_config.items() if key.endswith("offload")} == {offloads}
    assert actor.ppo_micro_batch_size % 32 == 0, "they count over all GPUs"
    assert not [word for word in submission.argv if word.startswith("critic")]
    assert submission.notes == planned().notes


def test_the_larger_ones_search_as_the_first_does():
    first = recipes.load("search-r1").overrides
    for size in ("32b", "72b"):
        other = recipes.load(f"search-r1-grpo-{size}").overrides
        shared = [key for key in first if key.startswith(("max_turns", "retriever.", "data.", "trainer.", "+trainer."))]
        assert {key: other.get(key) for key in shared if key != "trainer.critic_warmup"} == {
            key: first[key] for key in shared if key != "trainer.critic_warmup"
        }


def test_what_the_cluster_gives_is_filled_in(config):
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (2, 8)
    assert (config.data.train_files, config.data.val_files) == ("/d/train.parquet", "/d/test.parquet")
    assert config.actor_rollout_ref.model.path == config.critic.model.path == "/m"
    assert config.trainer.default_local_dir == FOLDER
    assert config.trainer.save_freq == 100
    assert (config.trainer.project_name, config.trainer.experiment_name) == ("search-r1", "run")
    assert list(config.trainer.logger) == ["console"]


def test_keys_of_a_newer_verl_are_left_out_and_it_is_said_what_that_means():
    submission = planned()
    assert not [word for word in submission.argv if word.startswith(("trainer.resume_mode", "trainer.device"))]
    assert submission.notes == (
        "verl 0.1 cannot resume a run: one that is interrupted starts over from its model",
        (
            "this job is not started again if a machine is lost: verl 0.1 cannot go on from a step. "
            "All the same: --durable"
        ),
    )
    assert submission.not_checked == (
        "the configuration (cloudrl does not know verl 0.1; cloudrl verl add makes it known)",
    )


def test_with_such_a_key_the_forks_hydra_would_refuse_it():
    with pytest.raises(ConfigCompositionException, match=r"Could not override 'trainer.resume_mode'"):
        composed([*words_of(planned()), "trainer.resume_mode=auto"])


def test_what_the_user_types_wins():
    config = composed(words_of(planned({"retriever.url": HydraText("http://10.0.0.9:8000/retrieve"), "max_turns": 2})))
    assert (config.retriever.url, config.max_turns) == ("http://10.0.0.9:8000/retrieve", 2)


def test_without_the_fork_it_is_refused_and_told_how_to_send_it():
    with pytest.raises(InputError) as caught:
        planned(verl_version="0.9.1")
    assert caught.value.message == ("recipe 'search-r1' is written for verl 0.1, and cluster 'lab' has 0.9.1")
    assert str(caught.value.hint).endswith("or send it along: --working-dir FOLDER")


def test_a_key_for_wandb_reaches_the_forks_workers_without_rays_knowledge():
    """The fork has no ray_kwargs; Ray itself starts its workers behind the reader."""
    submission = planned(env={"WANDB_API_KEY": "s3cret"}, secrets_dir="/secrets", ray_version="2.44.1")
    assert "s3cret" not in str(submission.request())
    assert submission.secrets == {"WANDB_API_KEY": "s3cret"}
    assert submission.runtime_env["py_executable"].startswith("/bin/sh /secrets/")
    config = composed(list(submission.argv[5:]))
    assert list(config.trainer.logger) == ["console", "wandb"]


def test_variables_are_those_of_the_forks_runtime_environment():
    assert planned().runtime_env == {
        "env_vars": {
            "HF_HUB_OFFLINE": "1",
            "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
            "VLLM_ATTENTION_BACKEND": "XFORMERS",
        }
    }


def test_the_recipe_names_the_commit_that_the_keys_are_of():
    head = (Path(__file__).parent / "search-r1-keys.txt").read_text()
    for name in ("search-r1", "search-r1-grpo-32b", "search-r1-grpo-72b"):
        [commit] = re.findall(r"at (\w+):", recipes.load(name).source)
        assert f"# {commit}" in head
