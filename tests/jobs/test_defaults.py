"""What a job takes from its cluster, and what it says itself."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from planning import LEAST, PLAIN, cluster, job, overrides, planned, typed

from cloudrl import recipes
from cloudrl.errors import InputError
from cloudrl.verl.defaults import needs_critic

MAIN_PPO = ("python3", "-m", "verl.trainer.main_ppo")


def test_a_job_filled_from_its_cluster(golden: Callable[[Path, str], None], repository: Path):
    submission = planned()
    golden(repository / "tests/golden/submission-grpo.yml", submission.render())
    assert submission.submission_id == submission.name == "grpo-20261121-100509"
    assert submission.metadata["cloudrl_checkpoints"] == "/checkpoints/grpo-20261121-100509"
    assert submission.notes == ()


def test_the_recipe_for_the_laptop_fits_the_local_cluster():
    data = {"addition": {"train": "/d/train.parquet", "test": "/d/test.parquet"}}
    local = cluster(gpus_per_node=1, device="cpu", data=data, models={"tiny-adder": "/m/tiny"})
    submission = planned(recipes.load("grpo-tiny"), local)
    assert int(submission.metadata["cloudrl_total_steps"]) > 0
    assert overrides(submission)["actor_rollout_ref.model.path"] == "/m/tiny"
    assert submission.notes == ()


@pytest.mark.parametrize(
    "argument",
    [
        "trainer.save_freq=5", "++trainer.save_freq=5", "trainer.experiment_name=mine",
        "trainer.default_local_dir=/elsewhere/mine", "trainer.resume_mode=disable",
        "actor_rollout_ref.model.path=/my/model", "trainer.nnodes=1", "trainer.n_gpus_per_node=4",
        "data.train_files=[/a.parquet,/b.parquet]", "trainer.nnodes=${oc.env:NODES}",
        "trainer.validation_data_dir=null",
    ],
)  # fmt: skip
def test_what_the_user_types_wins(argument: str):
    submission = planned(overrides=typed(argument))
    key = argument.split("=", 1)[0].lstrip("+")
    assert [each for each in submission.argv if each.split("=", 1)[0].lstrip("+") == key] == [argument]


def test_validations_are_kept_beside_the_checkpoints():
    filled = overrides(planned(overrides=typed("trainer.default_local_dir=/checkpoints/a/mine")))
    assert filled["trainer.validation_data_dir"] == "/checkpoints/a/mine/validation"
    assert "trainer.validation_data_dir" not in overrides(planned(job(verl="0.3.0"), cluster(verl_version="0.3.0")))


def test_what_the_recipe_says_wins_over_the_cluster():
    recipe = job(overrides={**LEAST, "trainer.save_freq": 7, "trainer.logger": ["console", "tensorboard"]})
    filled = overrides(planned(recipe))
    assert filled["trainer.save_freq"] == "7"
    assert filled["trainer.logger"] == "[console,tensorboard]"


def test_what_a_recipe_says_in_its_entry_point_wins_over_the_cluster():
    """Otherwise the cluster's data set, which comes last, would be trained on in place of the recipe's."""
    words = (
        "data.train_files=/x/train.parquet",
        "++data.val_files='/x/val.parquet'",
        "actor_rollout_ref.model.path=/m",
    )
    recipe = job(entrypoint=(*MAIN_PPO, *words), overrides=LEAST)
    data = {"gsm8k": {"train": "/d/train.parquet", "test": "/d/test.parquet"}}
    argv = planned(recipe, cluster(data=data, models={"other": "/models/other"})).argv
    assert [word for word in argv if re.match(r"\W*(data\..*_files|actor_rollout_ref\.model\.path)=", word)] == [*words]


@pytest.mark.parametrize("entrypoint", [("python3", "-m", "mine.train"), (*MAIN_PPO, "--config-path=/mine/config")])
def test_what_a_program_with_another_configuration_needs_is_unknown(entrypoint: tuple[str, ...]):
    """Its own YAML may name the data, or its own code."""
    submission = planned(job(entrypoint=entrypoint, data=(), overrides={}), cluster(data={}, models={}))
    assert any(skipped.startswith("the configuration (") for skipped in submission.not_checked)


class TestModelsAndData:
    def test_a_critic_gets_the_model_too(self):
        ppo = job(overrides={**LEAST, "algorithm.adv_estimator": "gae"})
        assert overrides(planned(ppo))["critic.model.path"] == "/models/qwen"
        mine = planned(ppo, overrides=typed("actor_rollout_ref.model.path=/mine"))
        assert overrides(mine)["critic.model.path"] == "/mine"
        other = planned(ppo, overrides=typed("critic.model.path=/c"))
        assert overrides(other)["critic.model.path"] == "/c"

    @pytest.mark.parametrize(
        ("given_", "needs"),
        [
            ({}, True),
            ({"algorithm.adv_estimator": "gae"}, True),
            ({"algorithm.adv_estimator": "grpo"}, False),
            ({"algorithm.adv_estimator": "grpo", "critic.optim.lr": "1"}, True),
            ({"algorithm.adv_estimator": "gae", "critic.enable": "False"}, False),
            ({"algorithm.adv_estimator": "grpo", "critic.enable": "true"}, True),
            ({"algorithm.adv_estimator": "gae", "critic.enable": "null"}, True),
        ],
    )
    def test_when_verl_builds_a_critic(self, given_: dict[str, str], needs: bool):
        assert needs_critic(given_) is needs

    def test_the_only_data_set_and_model_of_a_cluster_are_meant(self):
        filled = overrides(planned(job(data=[], model=None)))
        assert filled["data.train_files"] == "/data/gsm8k/train.parquet"
        assert filled["actor_rollout_ref.model.path"] == "/models/qwen"

    def test_several_data_sets_are_mixed(self):
        data = {name: {"train": f"/{name}/train.parquet", "test": f"/{name}/test.parquet"} for name in ("a", "b", "c")}
        filled = overrides(planned(job(data=["b", "a"]), cluster(data=data)))
        assert filled["data.train_files"] == "[/b/train.parquet,/a/train.parquet]"
        assert filled["data.val_files"] == "[/b/test.parquet,/a/test.parquet]"

    def test_a_model_that_nodes_keep_in_different_folders_goes_by_its_name(self):
        submission = planned(view=cluster(models={"Qwen/Qwen2.5-7B-Instruct": "Qwen/Qwen2.5-7B-Instruct"}))
        assert overrides(submission)["actor_rollout_ref.model.path"] == "Qwen/Qwen2.5-7B-Instruct"
        assert submission.runtime_env["env_vars"]["HF_HUB_OFFLINE"] == "1"


class TestPlainRay:
    def test_what_is_missing_is_said_at_once(self):
        with pytest.raises(InputError, match="plain Ray cluster, which prepares nothing") as caught:
            planned(job(data=[], model=None), cluster(**PLAIN))
        for key in ("data.train_files", "data.val_files", "actor_rollout_ref.model.path", "default_local_dir"):
            assert key in caught.value.message
            assert key in str(caught.value.hint)

    def test_a_recipe_with_data_misses_them_too(self):
        with pytest.raises(InputError) as caught:
            planned(view=cluster(**PLAIN))
        assert caught.value.message.endswith(": data.train_files, data.val_files, trainer.default_local_dir")

    def test_with_everything_given_it_works(self):
        submission = planned(
            job(device="cpu"),
            cluster(**PLAIN),
            overrides=typed(
                "data.train_files=/d/a", "data.val_files=/d/b", "trainer.default_local_dir=/c/run",
                "actor_rollout_ref.model.path=/m",
            ),
            durable=False,
        )  # fmt: skip
        assert submission.metadata["cloudrl_checkpoints"] == "/c/run"
        assert submission.notes == ()
