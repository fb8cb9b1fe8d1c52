"""How many steps a run has, and when it saves and validates."""

from __future__ import annotations

import re

import pytest

from cloudrl.verl.composition import compose
from cloudrl.verl.releases import RELEASE
from cloudrl.verl.setting import Setting
from cloudrl.verl.steps import (
    Budget,
    Steps,
    notes_of_validation,
    steps_of,
    warnings_of_lengths,
    warnings_of_saves,
    warnings_of_updates,
)

STEPS, SAVE, TEST = "trainer.total_training_steps", "trainer.save_freq", "trainer.test_freq"
EPOCHS, BATCH = "trainer.total_epochs=2", "data.train_batch_size=10"
HOUR_OF_SIXTY_STEPS = Budget(dollars=40.0, per_hour=40.0, step_s=60.0, run="grpo-1")


def setting(*overrides: str) -> Setting:
    values = compose(RELEASE.verl, overrides).values
    assert values is not None
    return Setting(values, 8)


@pytest.mark.parametrize(
    ("overrides", "rows", "steps"),
    [
        ((), None, None),
        ((f"{STEPS}=50",), None, Steps(50)),
        ((EPOCHS, BATCH), 105, Steps(20)),
        ((EPOCHS, BATCH, "data.train_max_samples=50"), 105, Steps(10)),
        ((EPOCHS, BATCH, f"{STEPS}=15"), 105, Steps(15)),
        ((EPOCHS, BATCH, f"{STEPS}=25"), 105, Steps(20, has_last=False)),
    ],
)
def test_how_many_steps_a_run_has(overrides: tuple[str, ...], rows: int | None, steps: Steps | None) -> None:
    assert steps_of(setting(*overrides), rows) == steps


def saves(*overrides: str, rows: int | None = None, budget: Budget | None = None) -> list[str]:
    made = setting(*overrides)
    return list(warnings_of_saves(made, steps_of(made, rows), budget))


def applied(text: str) -> str:
    """The override at the end of a remark."""
    found = re.search(r"trainer\.\w+=\d+$", text)
    assert found is not None, text
    return found[0]


@pytest.mark.parametrize(
    ("overrides", "rows", "budget", "said"),
    [
        ((f"{STEPS}=50", f"{SAVE}=100"), None, None,
         ("trainer.save_freq=100 is more than the 50 steps of the run: only the last step is saved, and a run that "
          "breaks off before starts over. Sooner: trainer.save_freq=25")),
        ((EPOCHS, BATCH, f"{STEPS}=25", f"{SAVE}=21"), 100, None, "it never saves. Sooner: trainer.save_freq=10"),
        ((f"{STEPS}=500", f"{SAVE}=100"), None, HOUR_OF_SIXTY_STEPS,
         ("the first save is due after 1 h 40 min (100 steps of 60 s, as in run grpo-1), but $40.00 at $40.00 an hour "
          "(--max-cost) last 1 h 00 min. In time: trainer.save_freq=30")),
        ((f"{STEPS}=100", f"{SAVE}=100"), None, None,
         ("trainer.save_freq=100: the first save comes after step 100 of 100, and a run that breaks off before starts "
          "over. Sooner: trainer.save_freq=25")),
        ((f"{STEPS}=7", f"{SAVE}=4"), None, None, "after step 4 of 7"),
        ((f"{STEPS}=90", f"{SAVE}=100"), None, HOUR_OF_SIXTY_STEPS, "In time: trainer.save_freq=30"),
    ],
)  # fmt: skip
def test_a_first_save_that_comes_too_late(overrides, rows, budget, said) -> None:
    [text] = saves(*overrides, rows=rows, budget=budget)
    assert said in text
    others = [word for word in overrides if not word.startswith(SAVE)]
    assert saves(*others, applied(text), rows=rows, budget=budget) == []


@pytest.mark.parametrize(
    ("overrides", "rows", "budget"),
    [
        ((f"{SAVE}=100",), None, None),
        ((f"{STEPS}=100", f"{SAVE}=50"), None, None),
        ((f"{STEPS}=3", f"{SAVE}=3"), None, None),
        ((f"{STEPS}=1", f"{SAVE}=100"), None, None),
        ((f"{STEPS}=500", f"{SAVE}=-1"), None, HOUR_OF_SIXTY_STEPS),
        ((f"{STEPS}=500", f"{SAVE}=60"), None, HOUR_OF_SIXTY_STEPS),
        ((f"{STEPS}=0", f"{SAVE}=60"), None, HOUR_OF_SIXTY_STEPS),
    ],
)
def test_saves_that_come_in_time(overrides, rows, budget) -> None:
    assert saves(*overrides, rows=rows, budget=budget) == []


def test_money_that_is_not_enough_for_one_step() -> None:
    words = (f"{STEPS}=500", f"{SAVE}=1")
    [text] = saves(*words, budget=Budget(1.0, 40.0, 120.0, "grpo-1"))
    assert text.endswith("not even one step. --max-cost 2.68 is enough for one")
    assert saves(*words, budget=Budget(2.68, 40.0, 120.0, "grpo-1")) == []


def validates(*overrides: str, rows: int | None = None) -> list[str]:
    made = setting(*overrides)
    return list(notes_of_validation(made, steps_of(made, rows)))


@pytest.mark.parametrize(
    ("overrides", "rows", "said"),
    [
        ((f"{TEST}=100", f"{STEPS}=40"), None, "100 is more than the 40 steps of the run: it validates only after the"),
        ((f"{TEST}=100", EPOCHS, BATCH, f"{STEPS}=40"), 100, "the 20 steps of the run: it never validates"),
        ((f"{TEST}=-1", f"{STEPS}=40"), None, "validates only before the first step. More often: trainer.test_freq=10"),
        ((f"{TEST}=0", "trainer.val_before_train=False"), None, "trainer.test_freq=0 never validates"),
    ],
)  # fmt: skip
def test_a_validation_set_that_is_hardly_used(overrides, rows, said) -> None:
    [text] = validates(*overrides, rows=rows)
    assert said in text
    assert validates(*(word for word in overrides if not word.startswith(TEST)), applied(text), rows=rows) == []


def test_validation_as_often_as_it_is_asked_for() -> None:
    assert validates(f"{TEST}=5", f"{STEPS}=40") == []
    assert validates(f"{TEST}=5") == []


WARMUP, GRPO = "trainer.critic_warmup", "algorithm.adv_estimator=grpo"


def updates(*overrides: str) -> list[str]:
    made = setting(*overrides)
    return list(warnings_of_updates(made, steps_of(made, None)))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((f"{WARMUP}=60", f"{STEPS}=50"), "60 is more than the 50 steps of the run, which never trains the actor"),
        ((f"{WARMUP}=60", f"{STEPS}=50", GRPO), "60 is more than the 50 steps of the run"),
        ((f"{WARMUP}=10", GRPO), "10 without a critic: no step before step 10 trains anything"),
    ],
)
def test_a_warm_up_in_which_nothing_is_trained(overrides, said) -> None:
    [text] = updates(*overrides)
    assert said in text
    assert updates(*overrides[1:], applied(text)) == []


def test_a_warm_up_of_a_critic() -> None:
    assert updates(f"{WARMUP}=50", f"{STEPS}=50") == updates(f"{WARMUP}=10") == updates(f"{WARMUP}=1", GRPO) == []


@pytest.mark.parametrize(("drops", "said"), [(True, "drops every prompt"), (False, "does not limit")])
@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_that_leaves_nothing_of_a_prompt(limit: int, drops: bool, said: str) -> None:
    word = f"data.filter_overlong_prompts={drops}"
    [text] = warnings_of_lengths(setting(word, f"data.max_prompt_length={limit}"))
    assert said in text
    assert list(warnings_of_lengths(setting(word, text.rpartition(" ")[2]))) == []
