"""Algorithms as overlays: what they replace, what they leave, and that none of verl's is forgotten."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from cloudrl import recipes
from cloudrl.errors import SpecError
from cloudrl.recipes.files import MAKES_AN_ALGORITHM
from cloudrl.spec import HydraText, Job
from cloudrl.spec.hydra import parse_overrides
from cloudrl.verl.defaults import needs_critic
from cloudrl.verl.releases import RELEASE

ACTOR, ANSWERS = "actor_rollout_ref.actor", "actor_rollout_ref.rollout.n"

LEFT_OUT = {
    "estimator grpo_vectorized": "grpo by other code",
    "estimator rloo_vectorized": "rloo by other code",
    "estimator gdpo": "needs a reward of several parts",
    "estimator tir_optimal_token_baseline": "for several turns",
    "loss dro": "verl names no coefficient",
    "loss bypass_mode": "belongs to verl's rollout correction",
}
"""What verl has and no overlay sets -> why."""


def core_algos() -> str:
    """The source of verl's algorithms; importing it would import torch."""
    spec = find_spec("verl")
    return (Path(spec.origin).parent / "trainer/ppo/core_algos.py").read_text()


def job(**overrides: object) -> Job:
    return Job(
        name="mine", verl=RELEASE.verl, overrides={key.replace("__", "."): each for key, each in overrides.items()}
    )


def by(algorithm: str, overrides: dict[str, object] | None = None) -> dict[str, str]:
    """Bare key -> value of a job with these overrides, by that algorithm."""
    changed = recipes.with_algorithm(Job(name="mine", verl=RELEASE.verl, overrides=overrides or {}), algorithm)
    return parse_overrides(changed.overrides)


def test_every_estimator_and_loss_of_verl_has_an_overlay_or_a_reason():
    source = core_algos()
    enum = source[source.index("class AdvantageEstimator") : source.index("ADV_ESTIMATOR_REGISTRY")]
    there = {f"estimator {name}" for name in re.findall(r'^    [A-Z_]+ = "(\w+)"$', enum, re.MULTILINE)}
    there |= {f"loss {name}" for name in re.findall(r'^@register_policy_loss\("(\w+)"\)', source, re.MULTILINE)}
    assert len(there) == 26
    used = set()
    for name in recipes.algorithms():
        found = by(name)
        used.add(f"estimator {found['algorithm.adv_estimator']}")
        used.add(f"loss {found.get(f'{ACTOR}.policy_loss.loss_mode', 'vanilla')}")
    assert there - used == set(LEFT_OUT)
    assert used <= there


def test_every_algorithm_says_what_it_is_and_where_its_numbers_are_from():
    for name in recipes.algorithms():
        algorithm = recipes.algorithm(name)
        assert algorithm.name == name
        assert algorithm.summary
        assert re.match(r"verl v?0\.\d\.\d: ", algorithm.source)
        assert algorithm.verl == RELEASE.verl
        assert not set(parse_overrides(algorithm.overrides)) & set(parse_overrides(algorithm.defaults))


def test_what_an_overlay_sets_for_its_loss_is_taken_back_by_the_next():
    """Else `gspo` and then `grpo` would leave GSPO's clip to GRPO."""
    stays = {f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.entropy_coeff", "trainer.use_v1"}
    for name in recipes.algorithms():
        for key in parse_overrides(recipes.algorithm(name).overrides):
            assert MAKES_AN_ALGORITHM.fullmatch(key) or key in stays, (name, key)


def test_the_algorithm_is_replaced_as_a_whole_and_the_rest_stays():
    before = recipes.with_algorithm(recipes.load("grpo"), "gspo")
    assert recipes.with_algorithm(before, "grpo").overrides == {
        **recipes.with_algorithm(recipes.load("grpo"), "grpo").overrides
    }
    after = parse_overrides(before.overrides)
    assert f"{ACTOR}.use_kl_loss" not in after
    assert after[f"{ACTOR}.kl_loss_coef"] == "0.001"
    assert after[f"{ACTOR}.clip_ratio_high"] == "0.0004"
    assert after["data.train_batch_size"] == "1024"


@pytest.mark.parametrize("name", [name for name in recipes.names() if name.startswith("ppo")])
def test_without_a_critic_none_is_built(name):
    given = parse_overrides(recipes.load(name).overrides)
    assert needs_critic(given)
    for algorithm in recipes.algorithms():
        changed = parse_overrides(recipes.with_algorithm(recipes.load(name), algorithm).overrides)
        assert needs_critic(changed) == (algorithm == "ppo")
        if algorithm != "ppo":
            assert not any(key.startswith("critic.") for key in changed)
            assert "trainer.critic_warmup" not in changed


def test_keys_for_a_critic_go_whatever_their_prefix():
    given = {"+critic.x": 1, "~critic.enable": HydraText(""), "critic": {"y": 2}, "+critical": 3}
    assert set(by("grpo", given)) & {"critic.x", "critic.enable", "critic", "critical"} == {"critical"}


def test_a_critic_is_as_the_actor_where_the_recipe_does_not_say():
    found = by("ppo", {f"{ACTOR}.strategy": "fsdp2", "critic.optim.lr": 3e-5})
    assert found["critic.optim.lr"] == "3e-05"
    assert found["critic.strategy"] == f"${{{ACTOR}.strategy}}"
    assert found["critic.fsdp.param_offload"] == f"${{{ACTOR}.fsdp_config.param_offload}}"


@pytest.mark.parametrize(
    ("given", "answers"), [({}, "16"), ({ANSWERS: 1}, "16"), ({ANSWERS: 4}, "4"), ({ANSWERS: "${data.n}"}, "${data.n}")]
)
def test_a_group_has_several_answers_unless_the_recipe_says_how_many(given, answers):
    assert by("gspo", given)[ANSWERS] == answers


def test_without_groups_the_number_of_answers_stays():
    assert ANSWERS not in by("remax")
    assert by("ppo", {ANSWERS: 8})[ANSWERS] == "8"


def test_coefficients_of_the_recipe_stay():
    given = {"algorithm.kl_ctrl.kl_coef": 0.5, f"{ACTOR}.kl_loss_coef": 0.25}
    assert by("rloo", given)["algorithm.kl_ctrl.kl_coef"] == "0.5"
    assert by("rloo")["algorithm.kl_ctrl.kl_coef"] == "0.001"
    assert by("grpo", given)[f"{ACTOR}.kl_loss_coef"] == "0.25"


def test_a_sampler_that_gets_no_filter_goes_with_dapo():
    sampler = "trainer.v1.sampler.custom_sampler"
    tiny = recipes.load("grpo-tiny")
    assert tiny.override(f"{sampler}.name") == "FastReplayBuffer"
    changed = recipes.with_algorithm(tiny, "dapo")
    assert changed.override(f"{sampler}.name") is None
    assert changed.override(f"{sampler}.path") is None
    assert changed.override("algorithm.filter_groups.enable") == "True"


def test_a_job_says_by_which_algorithm_it_is():
    changed = recipes.with_algorithm(recipes.load("grpo"), "dapo")
    assert changed.name == "grpo-dapo"
    assert changed.summary == "DAPO, with dynamic sampling and a higher upper clip; the rest as in grpo"
    assert changed.source.startswith(recipes.load("grpo").source + "; dapo: verl v0.9.0: ")
    assert recipes.with_algorithm(recipes.load("ppo-tiny"), "ppo").name == "ppo-tiny"
    assert recipes.with_algorithm(Job(name="a" * 100), "grpo").name == "a" * 60 + "-grpo"


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("DAPO", "; did you mean 'dapo'?"),
        ("reinforce++", "; did you mean 'reinforce_plus_plus'?"),
        ("../ppo", "; did you mean 'ppo'?"),
        ("zzz", ""),
    ],
)
def test_an_unknown_algorithm_gets_the_nearest(asked, meant):
    with pytest.raises(SpecError) as caught:
        recipes.with_algorithm(Job(name="mine"), asked)
    assert caught.value.message == f"there is no algorithm {asked!r}{meant}"
    assert caught.value.hint == f"Algorithms: {', '.join(recipes.algorithms())}"


def test_a_job_for_another_release_is_refused():
    with pytest.raises(SpecError) as caught:
        recipes.with_algorithm(Job(name="mine", verl="0.8.0"), "dapo")
    assert caught.value.message == "algorithm 'dapo' is written for verl 0.9.1, and recipe 'mine' for 0.8.0"
    assert recipes.with_algorithm(Job(name="mine", verl="0.9.0"), "dapo")
