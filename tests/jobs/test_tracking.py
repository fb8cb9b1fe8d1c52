"""`--track`, and loggers in which a run that resumes is one curve."""

from typing import Any

import pytest
from planning import cluster, plan

from cloudrl import recipes
from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.submission import Submission

LAB = cluster(
    gpus_per_node=1, device="cpu", data={"addition": {"train": "/vol/train.parquet", "test": "/vol/test.parquet"}},
    models={"tiny-adder": "/vol/tiny"}, secrets_dir="/dev/shm/cloudrl-0-1", ray_version="2.60.0",
)  # fmt: skip
SHELL = {"WANDB_API_KEY": "w", "SWANLAB_API_KEY": "s"}


def planned(shell: dict[str, str] = SHELL, **options: Any) -> Submission:
    return plan(recipes.load("grpo-tiny"), LAB, SubmitOptions(**options), shell=shell)


def variables(submission: Submission) -> dict[str, str]:
    return submission.runtime_env["env_vars"]


def test_the_logger_stands_beside_the_console():
    submission = planned(track=("wandb", "tensorboard"), name="mine")
    assert "trainer.logger=[console,wandb,tensorboard]" in submission.argv
    assert submission.secrets == {"WANDB_API_KEY": "w"}


@pytest.mark.parametrize("logger", ["wandb", "swanlab", "tensorboard"])
def test_a_run_that_resumes_is_the_same_run_there(logger: str):
    first, again = (variables(planned(track=(logger,), name="mine")) for _ in range(2))
    other = variables(planned(track=(logger,), name="other"))
    named = {"wandb": "WANDB_RUN_ID", "swanlab": "SWANLAB_RUN_ID", "tensorboard": "TENSORBOARD_DIR"}[logger]
    assert first[named] == again[named] != other[named]


def test_what_each_logger_reads():
    found = variables(planned(track=("wandb", "swanlab", "tensorboard"), name="mine"))
    assert (found["WANDB_RUN_ID"], found["WANDB_RESUME"], found["SWANLAB_RESUME"]) == ("mine", "allow", "allow")
    assert len(found["SWANLAB_RUN_ID"]) == 21
    assert found["TENSORBOARD_DIR"].endswith("/mine/tensorboard")


def test_a_logger_of_the_recipe_or_an_override_is_continued_too():
    found = variables(planned(overrides={"trainer.logger": ["console", "wandb"]}, name="mine"))
    assert found["WANDB_RUN_ID"] == "mine"
    assert "WANDB_RUN_ID" not in variables(planned(name="mine", shell={}))


def test_a_job_that_starts_anew_makes_a_run_of_its_own():
    found = variables(planned(track=("wandb",), overrides={"trainer.resume_mode": "disable"}, name="mine"))
    assert "WANDB_RUN_ID" not in found


def test_a_group_is_a_label_of_the_job_and_a_group_of_the_logger():
    submission = planned(track=("wandb",), overrides={"trainer.resume_mode": "disable"}, group="seeds")
    assert submission.metadata["cloudrl_group"] == variables(submission)["WANDB_RUN_GROUP"] == "seeds"
    own = planned(track=("wandb",), group="seeds", env={"WANDB_RUN_GROUP": "mine"})
    assert variables(own)["WANDB_RUN_GROUP"] == "mine"
    assert "cloudrl_group" not in planned(track=("wandb",)).metadata
    assert "WANDB_RUN_GROUP" not in variables(planned(track=("wandb",)))


def test_a_group_that_is_no_label():
    with pytest.raises(InputError, match=r"--group 'my seeds' cannot be a label; did you mean 'my-seeds'\?"):
        planned(group="my seeds")


def test_what_the_user_says_stays():
    found = variables(planned(track=("wandb",), env={"WANDB_RUN_ID": "own"}, name="mine"))
    assert (found["WANDB_RUN_ID"], found["WANDB_RESUME"]) == ("own", "allow")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"track": ("wandbb",)}, "did you mean 'wandb'"),
        ({"track": ("wandb",), "overrides": {"trainer.logger": ["console"]}}, "say the same thing twice"),
        ({"track": ("wandb",), "shell": {}}, "needs WANDB_API_KEY"),
        ({"track": ("swanlab",), "shell": {}}, "needs SWANLAB_API_KEY"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        planned(**options)


def test_offline_needs_no_key():
    submission = planned(track=("wandb",), env={"WANDB_MODE": "offline"}, shell={})
    assert variables(submission)["WANDB_MODE"] == "offline"


def test_files_of_loggers_outlive_the_jobs_working_directory():
    modes = {"WANDB_MODE": "offline", "SWANLAB_MODE": "local"}
    anew = {"trainer.resume_mode": "disable"}
    found = variables(planned(track=("wandb", "swanlab", "tensorboard"), env=modes, overrides=anew, name="mine"))
    folder = found["WANDB_DIR"]
    assert folder.endswith("/mine")
    assert (found["SWANLAB_LOG_DIR"], found["TENSORBOARD_DIR"]) == (f"{folder}/swanlog", f"{folder}/tensorboard")
    online = variables(planned(track=("wandb", "swanlab"), name="mine"))
    assert {"WANDB_DIR", "SWANLAB_LOG_DIR"}.isdisjoint(online)
