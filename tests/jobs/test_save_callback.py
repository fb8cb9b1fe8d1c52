"""The callback through which verl's trainer tells the agents what it has saved."""

import pytest

import cloudrl
from cloudrl.errors import InputError
from cloudrl.testing import FakeCluster

JOB = cloudrl.recipe("grpo-tiny")
OURS = "trainer.checkpoint_callback_class=cloudrl_save_hook.SaveCallback"


def _request(asks_trainers: bool = True, **options):
    fake = FakeCluster(nodes=2)
    fake.status["facts"]["asks_trainers"] = asks_trainers
    cloudrl.RunningCluster(fake.connection()).submit(JOB, name="one", **options)
    left = [job.request for job in fake.durable_jobs.values()] or [job.body for job in fake.jobs.values()]
    return left[0]["entrypoint"], left[0]["runtime_env"].get("env_vars", {})


def test_a_durable_job_has_it_and_another_job_has_not():
    assert OURS in _request(durable=True)[0]
    assert OURS in _request()[0]
    assert "checkpoint_callback_class" not in _request(durable=False)[0]


def test_the_users_own_runs_behind_it():
    command, variables = _request(durable=True, overrides={"trainer.checkpoint_callback_class": "mine.Own"})

    assert OURS in command
    assert "mine.Own" not in command
    assert variables["CLOUDRL_CHECKPOINT_CALLBACK"] == "mine.Own"


@pytest.mark.parametrize(
    "options",
    [
        {"asks_trainers": False},
        {"overrides": {"trainer.use_v1": False}},
        {"env": {"PYTHONPATH": "/mine"}},
    ],
)
def test_what_cannot_have_it_is_left_as_it_is(options):
    assert "SaveCallback" not in _request(durable=True, **options)[0]
    with pytest.raises(InputError, match=r"--save-every: .*(asked to save|ask a trainer|hides)"):
        _request(save_every="20m", **options)


def test_a_callback_that_verl_refuses_is_refused_before():
    with pytest.raises(InputError, match="verl needs the name of a class, with its module"):
        _request(durable=True, overrides={"trainer.checkpoint_callback_class": "Mine"})


def test_saves_by_the_clock_take_the_place_of_the_recipes_and_not_of_the_users():
    command, variables = _request(save_every="20m")
    assert variables["CLOUDRL_SAVE_EVERY_S"] == "1200"
    assert "trainer.save_freq=1000000" in command
    assert "trainer.save_freq=3" in _request(save_every="20m", overrides={"trainer.save_freq": 3})[0]
    with pytest.raises(InputError, match="has no unit"):
        _request(save_every="20")
