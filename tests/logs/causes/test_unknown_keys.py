"""A misspelt or old key in `why`: the hint that `check` gives, applied to the command that failed."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from failed_job import driver, find
from recordings import load

from cloudrl.logs.causes.finder import find_cause
from cloudrl.logs.causes.unknown_keys import remedy_of
from cloudrl.verl.composition import compose
from cloudrl.verl.releases import RELEASE

MAIN = ("python3", "-m", "verl.trainer.main_ppo")
USUAL = ("algorithm.adv_estimator=grpo", "trainer.nnodes=2")
VERL = {"cloudrl_verl": RELEASE.verl}


def printed(word: str) -> tuple[str, ...]:
    key = word.partition("=")[0]
    name = key.rpartition(".")[2]
    return (f"Could not override '{key}'.", f"To append to your config use +{word}", f"Key '{name}' is not in struct")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("data.train_batchsize=8", "data.train_batch_size=8"),
        ("actor_rollout_ref.rollout.val_temperature=0.6", "actor_rollout_ref.rollout.val_kwargs.temperature=0.6"),
        ("data.enable_thinking=False", "+data.apply_chat_template_kwargs.enable_thinking=False"),
    ],
)
def test_the_hint_of_check(word: str, hint: str) -> None:
    job = {"entrypoint": shlex.join([*MAIN, *USUAL, word]), "metadata": VERL}
    found = find([driver(*printed(word))], job=job)
    key = word.partition("=")[0]
    assert found is not None
    assert (found.signature, found.remedy) == ("unknown-key", f"In place of {key}, with verl {RELEASE.verl}: {hint}")
    assert compose(RELEASE.verl, (*USUAL, hint)).problems == ()


def test_a_key_that_the_job_sets_by_its_new_name_is_left_out() -> None:
    word = "actor_rollout_ref.rollout.val_temperature=0.6"
    words = (*USUAL, "actor_rollout_ref.rollout.val_kwargs.temperature=1", word)
    told = remedy_of(printed(word), {"entrypoint": shlex.join([*MAIN, *words]), "metadata": VERL})
    assert told is not None
    assert told.endswith(": ~actor_rollout_ref.rollout.val_temperature")


@pytest.mark.parametrize("entrypoint", ["", "bash train.sh", "python3 -m verl.trainer.main_ppo 'cut"])
def test_an_entry_point_that_says_nothing_of_the_job(entrypoint: str) -> None:
    told = remedy_of(printed("data.train_batchsize=8"), {"entrypoint": entrypoint, "metadata": VERL})
    assert told is not None
    assert told.endswith(": data.train_batch_size=8")


@pytest.mark.parametrize(
    ("word", "metadata"),
    [
        ("actor_rollout_ref.rollout.nonsense=1", VERL),
        ("trainer.nonsense=1", VERL),
        ("data.train_batchsize=8", {}),
        ("data.train_batchsize=8", {"cloudrl_verl": "0.1"}),
        ("data.train_batchsize=8", None),
        ("data.api_token=abc", VERL),
    ],
)
def test_where_nothing_is_known_nothing_is_suggested(word: str, metadata: object) -> None:
    job = {"entrypoint": shlex.join([*MAIN, *USUAL, word]), "metadata": metadata}
    assert remedy_of(printed(word), job) is None


def test_a_recorded_job_whose_key_verl_never_had() -> None:
    held = load("unknown_key")
    state = replace(held.state, job={**held.state.job, "metadata": VERL})
    found = find_cause(replace(held, state=state))
    assert found is not None
    assert found.remedy == "Leave the key out, or look for its name in this release - cloudrl check"
