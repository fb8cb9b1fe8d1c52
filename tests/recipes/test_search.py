"""The recipes for agents that search with today's verl: both search alike, as Search-R1 does; conversations fit."""

import pytest

from cloudrl import recipes
from cloudrl.spec.hydra import integer, parse_overrides

ROLLOUT = "actor_rollout_ref.rollout"
OF_ONE = {f"{ROLLOUT}.n", "trainer.max_critic_ckpt_to_keep"}
"""Answers to a prompt, and saves of a critic: the algorithms differ in them."""
RECIPES = ("search-grpo", "search-ppo")


def test_both_search_alike() -> None:
    grpo, ppo = (parse_overrides(recipes.load(name).overrides) for name in RECIPES)
    shared = {key for key in {*grpo, *ppo} if key.startswith(("data.", ROLLOUT, "trainer."))} - OF_ONE
    assert {key: grpo.get(key) for key in shared} == {key: ppo.get(key) for key in shared}


@pytest.mark.parametrize("name", RECIPES)
def test_a_conversation_fits(name: str) -> None:
    ours = {key: integer(value) or 0 for key, value in parse_overrides(recipes.load(name).overrides).items()}
    longest = ours["data.max_prompt_length"] + ours["data.max_response_length"]
    assert longest <= ours[f"{ROLLOUT}.max_model_len"]
    assert longest <= ours["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"]
    searches = recipes.load("search-r1").override("max_turns")
    assert ours[f"{ROLLOUT}.multi_turn.max_assistant_turns"] == int(str(searches)) + 1
