from __future__ import annotations

import json
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cloudrl import recipes
from cloudrl.connection import ClusterView
from cloudrl.errors import InputError
from cloudrl.jobs import Submission, Wishes, plan
from cloudrl.jobs.fill import fill, needs_critic, unquoted
from cloudrl.jobs.working_dir import Package
from cloudrl.spec import HydraText, Job, hydra_text, parse_override

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = datetime(2026, 11, 21, 10, 5, 9, tzinfo=timezone.utc)


def cluster(**changes: Any) -> ClusterView:
    lab: dict[str, Any] = {
        "name": "lab",
        "id": "id-1",
        "nodes": 2,
        "gpus_per_node": 8,
        "device": "gpu",
        "checkpoint_dir": "/checkpoints",
        "data": {"gsm8k": {"train": "/data/gsm8k/train.parquet", "test": "/data/gsm8k/test.parquet"}},
        "models": {"Qwen/Qwen2.5-7B-Instruct": "/models/qwen"},
        "verl_version": "0.9.1",
    }
    return ClusterView(**{**lab, **changes})


PLAIN = {"id": None, "checkpoint_dir": None, "data": {}, "models": {}, "verl_version": None}


def job(**changes: Any) -> Job:
    base: dict[str, Any] = {
        "name": "grpo",
        "overrides": {"algorithm.adv_estimator": "grpo"},
        "data": ["gsm8k"],
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "verl": "0.9.1",
    }
    return Job(**{**base, **changes})


def planned(job_: Job | None = None, view: ClusterView | None = None, **wishes: Any) -> Submission:
    return plan(job_ or job(), view or cluster(), Wishes(**wishes), now=NOW)


def typed(*arguments: str) -> dict[str, str]:
    """Overrides as the command line gives them."""
    return dict(parse_override(argument) for argument in arguments)


def overrides(submission: Submission) -> dict[str, str]:
    return dict(argument.split("=", 1) for argument in submission.argv[3:])


def test_a_job_filled_from_its_cluster(golden: Callable[[Path, str], None], repository: Path):
    submission = planned()

    golden(repository / "tests/golden/submission-grpo.yml", submission.render())
    assert overrides(submission) == {
        "trainer.nnodes": "2",
        "trainer.n_gpus_per_node": "8",
        "trainer.project_name": "grpo",
        "trainer.experiment_name": "grpo-20261121-100509",
        "trainer.logger": "[console]",
        "trainer.save_freq": "20",
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": "/checkpoints/grpo-20261121-100509",
        "data.train_files": "/data/gsm8k/train.parquet",
        "data.val_files": "/data/gsm8k/test.parquet",
        "actor_rollout_ref.model.path": "/models/qwen",
        "algorithm.adv_estimator": "grpo",
    }
    assert submission.submission_id == submission.name == "grpo-20261121-100509"
    assert submission.checkpoint_dir == "/checkpoints/grpo-20261121-100509"
    assert submission.notes == ()


def test_the_recipe_for_the_laptop_fits_the_local_cluster():
    local = cluster(
        gpus_per_node=1,
        device="cpu",
        data={"addition": {"train": "/d/train.parquet", "test": "/d/test.parquet"}},
        models={"tiny-qwen2": "/m/tiny"},
    )

    submission = planned(recipes.load("grpo-tiny"), local)

    assert submission.total_steps is not None
    assert submission.metadata["cloudrl_total_steps"] == str(submission.total_steps)
    assert overrides(submission)["actor_rollout_ref.model.path"] == "/m/tiny"
    assert submission.notes == ()


@pytest.mark.parametrize(
    "argument",
    [
        "trainer.save_freq=5",
        "++trainer.save_freq=5",
        "trainer.experiment_name=mine",
        "trainer.default_local_dir=/elsewhere/mine",
        "trainer.resume_mode=disable",
        "actor_rollout_ref.model.path=/my/model",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=4",
        "data.train_files=[/a.parquet,/b.parquet]",
        "trainer.nnodes=${oc.env:NODES}",
    ],
)
def test_what_the_user_types_wins(argument: str):
    submission = planned(overrides=typed(argument))

    key = argument.split("=", 1)[0].lstrip("+")
    assert [each for each in submission.argv if each.split("=", 1)[0].lstrip("+") == key] == [argument]


def test_what_the_recipe_says_wins_over_the_cluster():
    recipe = job(overrides={"trainer.save_freq": 7, "trainer.logger": ["console", "tensorboard"]})

    filled = overrides(planned(recipe))

    assert filled["trainer.save_freq"] == "7"
    assert filled["trainer.logger"] == "[console,tensorboard]"


class TestNames:
    def test_a_second_submit_by_accident_is_another_run(self):
        later = NOW.replace(second=10)

        assert planned().name != plan(job(), cluster(), now=later).name

    def test_a_name_of_ones_own_continues_the_run(self):
        submission = planned(name="my-run")

        assert submission.checkpoint_dir == "/checkpoints/my-run"
        assert submission.submission_id == "my-run-20261121-100509"
        assert submission.notes == (
            "run 'my-run' continues from the newest checkpoint in /checkpoints/my-run, if there is one",
        )

    def test_a_name_without_resuming(self):
        assert planned(name="my-run", overrides=typed("trainer.resume_mode=disable")).notes == ()

    def test_an_id_of_ones_own(self):
        submission = planned(submission_id="raysubmit_1")

        assert (submission.submission_id, submission.name) == ("raysubmit_1", "grpo-20261121-100509")

    @pytest.mark.parametrize("option", ["name", "submission_id"])
    @pytest.mark.parametrize(
        "hostile",
        ["", ".", "..", "../x", "a/b", "a b", "-x", "$(rm)", "a'b", "a\nb", "a" * 101, "é", "a\0"],
    )
    def test_a_name_that_is_no_file_name(self, option: str, hostile: str):
        with pytest.raises(InputError, match=r"^--(name|submission-id) .* cannot be the name of a folder"):
            planned(**{option: hostile})

    def test_what_was_meant(self):
        with pytest.raises(InputError, match="did you mean 'my-run-2'"):
            planned(name="my run/2")

    def test_a_recipe_with_a_very_long_name(self):
        assert len(planned(job(name="r" * 100)).submission_id) <= 100
        assert len(planned(name="r" * 100).submission_id) <= 100


class TestSteps:
    def test_epochs_do_not_end_the_run_before_its_steps(self):
        filled = overrides(planned(job(overrides={"trainer.total_epochs": 1}), steps=100))

        assert filled["trainer.total_training_steps"] == "100"
        assert filled["trainer.total_epochs"] == "100"

    def test_they_are_known_to_those_who_follow(self):
        assert planned(steps=100).total_steps == 100
        assert planned(overrides=typed("+trainer.total_training_steps=7")).total_steps == 7
        assert planned().total_steps is None
        assert planned(overrides=typed("trainer.total_training_steps=${x}")).total_steps is None

    def test_epochs_that_the_user_types_stay(self):
        filled = overrides(planned(steps=100, overrides=typed("trainer.total_epochs=2")))

        assert filled["trainer.total_epochs"] == "2"

    def test_the_same_twice_is_no_contradiction(self):
        planned(steps=5, overrides=typed("trainer.total_training_steps=5"))
        with pytest.raises(InputError, match=r"--steps 5 and .*_steps=6 differ"):
            planned(steps=5, overrides=typed("trainer.total_training_steps=6"))

    @pytest.mark.parametrize("steps", [0, -1])
    def test_less_than_one(self, steps: int):
        with pytest.raises(InputError, match=f"--steps {steps} is less than 1"):
            planned(steps=steps)


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["trainer.nnodes=3"], r"trainer\.nnodes=3, but cluster 'lab' has 2 nodes:"),
            (["++trainer.nnodes=3"], r"trainer\.nnodes=3, but cluster 'lab' has 2 nodes:"),
            (["trainer.n_gpus_per_node=16"], r"n_gpus_per_node=16, but cluster 'lab' has 8 GPUs a node:"),
            (["trainer.nnodes=0"], r"trainer\.nnodes=0 is less than 1"),
            (["trainer.nnodes=-1"], r"trainer\.nnodes=-1 is less than 1"),
            (["trainer.nnodes=two"], r"trainer\.nnodes=two is not a whole number"),
            (["trainer.default_local_dir=checkpoints/x"], "is relative: checkpoints would land in"),
            (["trainer.default_local_dir='ckpt'"], "is relative"),
            (["trainer.default_local_dir=hdfs://x/y"], "is relative"),
            (["trainer.save_freq=-1"], r"save_freq=-1 never saves"),
            (["trainer.save_freq=0"], r"save_freq=0 never saves"),
        ],
    )
    def test_of_wishes(self, arguments: list[str], says: str):
        with pytest.raises(InputError, match=says) as caught:
            planned(overrides=typed(*arguments))
        assert caught.value.exit_code == 2
        assert caught.value.hint

    def test_of_two_nodes_on_a_cluster_of_one(self):
        with pytest.raises(InputError, match=r"trainer\.nnodes=2, but cluster 'lab' has 1 node:") as caught:
            planned(view=cluster(nodes=1), overrides=typed("trainer.nnodes=2"))
        assert "cloudrl up" in str(caught.value.hint)

    def test_of_a_recipe_that_never_saves(self):
        with pytest.raises(InputError, match="never saves"):
            planned(job(overrides={"trainer.save_freq": -1}))

    def test_of_data_that_is_not_there(self):
        with pytest.raises(
            InputError, match=r"reads data set 'gsm8', which .*'lab' has not prepared"
        ) as caught:
            planned(job(data=["gsm8"]))
        assert "it has: gsm8k; did you mean 'gsm8k'?" in caught.value.message
        assert "--data gsm8" in str(caught.value.hint)

    def test_of_a_model_that_only_cloudrl_makes(self):
        with pytest.raises(InputError, match="model 'tiny-qwen2' is made by cloudrl"):
            planned(job(model="tiny-qwen2"))

    def test_of_a_gpu_recipe_on_cpus(self):
        with pytest.raises(InputError, match="computes on GPUs, and cluster 'lab' on CPUs"):
            planned(view=cluster(device="cpu"))

    def test_of_a_cluster_without_any_gpu(self):
        with pytest.raises(InputError, match="no node of cluster 'lab' offers a GPU to Ray"):
            planned(view=cluster(nodes=0, gpus_per_node=0))

    def test_of_another_release_of_verl(self):
        with pytest.raises(InputError, match=r"written for verl 0\.9\.1, and cluster 'lab' has 0\.8\.0"):
            planned(view=cluster(verl_version="0.8.0"))

    def test_of_nothing_to_train_on(self):
        with pytest.raises(InputError, match="neither recipe 'grpo' nor cluster 'lab' says: "):
            planned(job(data=[]), cluster(data={}))


class TestNotes:
    def test_on_a_cpu_recipe_on_a_gpu_cluster(self):
        submission = planned(job(device="cpu"))

        assert "trainer.device=cpu" in submission.argv
        assert submission.notes == ("recipe 'grpo' computes on the CPU; the GPUs of cluster 'lab' stay idle",)

    def test_on_a_model_that_everybody_fetches(self):
        submission = planned(job(model="other/model"))

        assert "every worker asks the Hub" in submission.notes[0]
        assert "HF_HUB_OFFLINE" not in submission.runtime_env.get("env_vars", {})

    def test_on_another_patch_of_verl(self):
        assert "has 0.9.2" in planned(view=cluster(verl_version="0.9.2")).notes[0]

    def test_on_checkpoints_elsewhere(self):
        notes = planned(overrides=typed("trainer.default_local_dir=/checkpoints-2/x")).notes

        assert notes == ("/checkpoints-2/x lies outside /checkpoints: cloudrl can neither list nor merge it",)

    def test_on_a_logger_that_shows_nothing(self):
        assert "no progress can be shown" in planned(overrides=typed("trainer.logger=[wandb]")).notes[0]

    def test_on_a_secret_in_the_command(self):
        assert "--env hides it" in planned(overrides=typed("+x.api_key=abc")).notes[0]

    def test_on_what_ray_expands(self):
        assert "Ray expands" in planned(env={"P": "a$HOME"}).notes[0]


class TestModelsAndData:
    def test_a_critic_gets_the_model_too(self):
        ppo = job(overrides={"algorithm.adv_estimator": "gae"})

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
        data = {name: {"train": f"/{name}/train", "test": f"/{name}/test"} for name in ("a", "b", "c")}

        filled = overrides(planned(job(data=["b", "a"]), cluster(data=data)))

        assert filled["data.train_files"] == "[/b/train,/a/train]"
        assert filled["data.val_files"] == "[/b/test,/a/test]"

    def test_a_model_that_nodes_keep_in_different_folders_goes_by_its_name(self):
        submission = planned(view=cluster(models={"Qwen/Qwen2.5-7B-Instruct": "Qwen/Qwen2.5-7B-Instruct"}))

        assert overrides(submission)["actor_rollout_ref.model.path"] == "Qwen/Qwen2.5-7B-Instruct"
        assert submission.runtime_env["env_vars"]["HF_HUB_OFFLINE"] == "1"


class TestPlainRay:
    def test_what_is_missing_is_said_at_once(self):
        with pytest.raises(InputError, match="plain Ray cluster, which prepares nothing") as caught:
            planned(job(data=[], model=None), cluster(**PLAIN))
        for key in (
            "data.train_files",
            "data.val_files",
            "actor_rollout_ref.model.path",
            "default_local_dir",
        ):
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
        )  # fmt: skip

        assert submission.checkpoint_dir == "/c/run"
        assert submission.notes == ()


class TestEnvironment:
    def test_recipe_file_and_command_line_in_this_order(self):
        env = planned(
            job(env={"A": "recipe", "B": "recipe", "C": "recipe"}),
            runtime_env={"env_vars": {"B": "file", "C": "file"}},
            env={"C": "line"},
        ).runtime_env["env_vars"]

        assert env == {"HF_HUB_OFFLINE": "1", "A": "recipe", "B": "file", "C": "line"}

    def test_the_hub_is_left_alone_unless_the_user_wants_it(self):
        assert planned().runtime_env == {"env_vars": {"HF_HUB_OFFLINE": "1"}}
        assert planned(env={"HF_HUB_OFFLINE": "0"}).runtime_env == {"env_vars": {"HF_HUB_OFFLINE": "0"}}

    def test_a_reward_model_of_the_hub_needs_the_hub(self):
        mine = planned(overrides=typed("reward.reward_model.model_path=Skywork/Reward-8B"))
        local = planned(overrides=typed("reward.reward_model.model_path=/models/reward"))

        assert "env_vars" not in mine.runtime_env
        assert local.runtime_env["env_vars"] == {"HF_HUB_OFFLINE": "1"}

    def test_a_key_for_wandb_switches_it_on(self):
        assert overrides(planned(env={"WANDB_API_KEY": "k"}))["trainer.logger"] == "[console,wandb]"

    def test_other_fields_are_passed_on_and_excludes_are_not(self):
        runtime_env = {"excludes": ["/x/"], "working_dir": "./", "config": {"setup_timeout_seconds": 60}}
        package = Package("_ray_pkg_1.zip", b"", files=0)

        submission = plan(job(), cluster(), Wishes(runtime_env=runtime_env), package=package, now=NOW)

        assert submission.runtime_env == {
            "config": {"setup_timeout_seconds": 60},
            "working_dir": "gcs://_ray_pkg_1.zip",
            "env_vars": {"HF_HUB_OFFLINE": "1"},
        }

    def test_a_working_directory_that_the_cluster_fetches(self):
        submission = planned(
            working_dir="s3://bucket/code.zip", runtime_env={"working_dir": "gcs://other.zip"}
        )

        assert submission.runtime_env["working_dir"] == "s3://bucket/code.zip"

    def test_a_name_that_is_none(self):
        with pytest.raises(InputError, match="environment: 'A B' is not a variable name"):
            planned(env={"A B": "1"})


class TestRendering:
    SECRETS = ("hf_0123456789", "wandb-key-1", "pass-word", "s3cr3t-value", "deep-key-1")

    def secretive(self) -> Submission:
        return planned(
            env={"HF_TOKEN": "hf_0123456789", "WANDB_API_KEY": "wandb-key-1", "MY_SECRET": "s3cr3t-value"},
            runtime_env={"pip": ["--index-url=https://me:pass-word@pypi.test/simple"]},
            overrides=typed(
                "+x.api_key=deep-key-1", "+y.copy='is hf_0123456789 here'", "data.prompt_key=prompt"
            ),
        )

    def test_no_secret_is_shown(self):
        submission = self.secretive()

        shown = submission.render() + repr(submission.masked_request())

        assert [secret for secret in self.SECRETS if secret in shown] == []
        assert "data.prompt_key=prompt" in shown
        assert "HF_TOKEN: '***'" in shown
        assert "s3cr3t-value" not in repr(submission)

    def test_secrets_are_sent(self):
        sent = json.dumps(self.secretive().request())

        assert [secret for secret in self.SECRETS if secret not in sent] == []

    def test_what_is_shown_is_what_is_sent(self):
        submission = planned(
            overrides=typed("+a.b='x y'", "+c='it\\'s'", "~d", "+e=a\nb", "+f=$(id) `id` ; \\")
        )

        shown, sent = yaml.safe_load(submission.render()), submission.request()

        assert words(shown.pop("entrypoint")) == words(sent.pop("entrypoint")) == list(submission.argv[3:])
        assert (
            shown == sent == {key: value for key, value in submission.masked_request().items() if key in sent}
        )


def words(entrypoint: str) -> list[str]:
    """The overrides as a program gets them from a shell."""
    show = shlex.join([sys.executable, "-c", "import json,sys; print(json.dumps(sys.argv[1:]))"])
    command = entrypoint.replace("python3 -m verl.trainer.main_ppo", show, 1)
    seen = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=True, timeout=30)
    return list(json.loads(seen.stdout))


HOSTILE = [
    "it's",
    'say "hi"',
    "$(id)",
    "`id`",
    "a\nb",
    "a;b",
    "a b",
    "\\",
    "*",
    "a=b",
    "{x}",
    "[1",
    "#",
    "é你",
    "!h",
    "~",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_shell_sees_what_was_meant(hostile: str):
    """Hostile text in a path, a value and a variable arrives in the program as it was, and runs nothing."""
    recipe = job(overrides={"+note": hostile, "algorithm.adv_estimator": "grpo"})
    submission = planned(recipe, cluster(checkpoint_dir=f"/ckpt/{hostile}"))

    assert words(submission.entrypoint) == list(submission.argv[3:])
    assert submission.checkpoint_dir == f"/ckpt/{hostile}/{submission.name}"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hydra_reads_what_was_meant(hostile: str):
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    submission = planned(
        view=cluster(checkpoint_dir=f"/ckpt/{hostile}", models={}), overrides={"+note": hostile}
    )

    read = {each.key_or_group: each.value() for each in parser.parse_overrides(list(submission.argv[3:]))}

    assert read["note"] == hostile
    assert read["trainer.default_local_dir"] == f"/ckpt/{hostile}/{submission.name}"
    assert read["trainer.nnodes"] == 2
    assert read["trainer.logger"] == ["console"]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_quotes_come_off_again(value: str):
    text = hydra_text(value)
    if text[:1] in ("'", '"'):
        assert unquoted(text) == value


@given(st.text(max_size=30))
def test_any_typed_value_is_planned_or_refused(value: str):
    try:
        submission = planned(overrides={"trainer.nnodes": HydraText(value), "+x": HydraText(value)})
    except InputError:
        return
    assert shlex.split(submission.entrypoint) == list(submission.argv)


def test_filling_changes_nothing_that_it_was_given():
    recipe, lab = job(), cluster()
    before = (recipe.model_dump(), repr(lab))

    fill(recipe, lab, name="run")

    assert (recipe.model_dump(), repr(lab)) == before
