"""Hints that are overrides, what they change, and the corrected command."""

import pytest
from planning import job

from cloudrl.errors import InputError, Refusals
from cloudrl.jobs.findings import Finding, JobRefused, apply, corrected_command, overrides_of, with_fix, words_of
from cloudrl.spec import HydraText


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        ("trainer.nnodes=2", ("trainer.nnodes=2",)),
        ("'~a.b' +c.d=[1,2]", ("~a.b", "+c.d=[1,2]")),
        ("model_engine=megatron", ("model_engine=megatron",)),
        ("""'data.train_files=["/a b"]'\nOr a sentence""", ('data.train_files=["/a b"]',)),
        ("The megatron engine has it: model_engine=megatron", ()),
        ("cloudrl up ... --nodes 2", ()),
        ("trainer.resume_from_path=.../global_step_40", ()),
        ("don't", ()),
        ("", ()),
    ],
)
def test_a_hint_is_a_fix_if_it_can_be_pasted(hint: str, words: tuple[str, ...]) -> None:
    assert overrides_of(hint) == words
    assert Finding("x", hint).fix == words


def test_what_replaces_an_unreadable_key_takes_its_place() -> None:
    assert Finding("x", "a.b=1", key="a.bb").fix == ("~a.bb", "a.b=1")
    assert Finding("x", "a.b=1", key="a.b").fix == ("a.b=1",)
    assert Finding("x", "", key="a.b").fix == ()


def test_a_fix_changes_what_the_user_typed_or_takes_out_what_the_recipe_sets() -> None:
    recipe = job(overrides={"trainer.test_freq": 5})
    typed = {"+trainer.a": HydraText("1"), "data.x": HydraText("2")}
    fixed = with_fix(recipe, typed, ("trainer.a=3", "~data.x", "~trainer.test_freq", "~not.there"))
    assert fixed == {"trainer.a": "3", "~trainer.test_freq": ""}
    assert words_of(typed, fixed) == ("~data.x", "trainer.a=3", "~trainer.test_freq")
    assert recipe.with_overrides(fixed).overrides == {"trainer.a": "3"}
    assert apply({"a.b": "1", "+c.d": "2"}, ("c.d=3", "~a.b")) == {"c.d": "3"}


def test_the_corrected_command_is_the_typed_one_with_other_overrides() -> None:
    words = ["check", "grpo", "--gpu", "H100:8", "+data.a=1", "--json", "data.b=2", "data.a=5"]
    fixed = corrected_command(words, ("data.a=3", "~data.b", "trainer.c=4"))
    assert fixed == ["check", "grpo", "--gpu", "H100:8", "data.a=3", "--json", "trainer.c=4"]


def test_a_refusal_has_all_reasons_and_says_whose_the_key_is() -> None:
    findings = (Finding("one", "a.b=1", is_about_verl=True, owner="recipe 'x'"), Finding("two"))
    refused = JobRefused(findings, ("a.b=1",), findings[1:])
    assert refused.message.splitlines() == [
        "this job cannot run, for 2 reasons:", "  one (set by recipe 'x')", "    a.b=1", "  two"
    ]  # fmt: skip
    assert refused.hint is None, "--unchecked does not send what is not verl's to refuse"
    assert refused.corrected(["check", "x"]) == ["check", "x", "a.b=1"]
    assert refused.remaining is not None
    assert refused.remaining.message == "two"
    assert [each["set_by"] for each in refused.to_json()] == ["recipe 'x'", "user"]
    alone = JobRefused(findings[:1], (), ())
    assert alone.hint == "a.b=1\nSend it all the same: --unchecked"
    assert (alone.corrected([]), alone.remaining) == (None, None)


def test_checks_are_collected() -> None:
    refused = Refusals()
    for word in ("a", "b"):
        with refused.collect():
            raise InputError(word)
    assert [error.message for error in refused] == ["a", "b"]
