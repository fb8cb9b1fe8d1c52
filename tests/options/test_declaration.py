from dataclasses import dataclass
from typing import Annotated, TypedDict

from cloudrl.options.declaration import Option, declared, read_typed
from cloudrl.options.job import SubmitOptions


@dataclass(frozen=True)
class Meal:
    eggs: Annotated[int | None, Option("How many.", "N")] = None
    sides: Annotated[
        tuple[str, ...], Option("Beside them.", "NAME", ("--side", "-s"), typed=list[str], read=tuple)
    ] = ()
    tea: Annotated[
        str | None,
        Option("With milk.", names=("--milk",), sets="milk"),
        Option("With lemon.", names=("--with-lemon",), sets="lemon"),
    ] = None
    salted: Annotated[bool, Option("With salt.", sets=True)] = False
    table: int = 0


def test_the_parameters_that_receive_options():
    assert [(each.field, each.parameter, each.typed) for each in declared(Meal)] == [
        ("eggs", "eggs", int),
        ("sides", "side", list[str]),
        ("tea", "milk", bool),
        ("tea", "with_lemon", bool),
        ("salted", "salted", bool),
    ]


def test_what_is_typed_becomes_values_of_fields():
    typed = {"eggs": 0, "side": ["bread"], "milk": False, "with_lemon": True, "salted": False}
    assert Meal(**read_typed(Meal, typed)) == Meal(eggs=0, sides=("bread",), tea="lemon")
    assert read_typed(Meal, {"eggs": None, "side": None}) == {}


def test_a_value_is_typed_in_these_words():
    meal = Meal(eggs=0, sides=("bread", "beans"), tea="lemon")
    words = [entry.words(getattr(meal, entry.field)) for entry in declared(Meal)]
    assert words == [["--eggs=0"], ["--side=bread", "--side=beans"], [], ["--with-lemon"], []]


def test_a_typed_dict_declares_options_too():
    class Keywords(TypedDict, total=False):
        eggs: Annotated[int, Option("How many.", "N")]

    assert [each.typed for each in declared(Keywords)] == [int]


def test_every_option_of_a_job_says_what_it_is():
    options = [each.option for each in declared(SubmitOptions)]
    assert all(option.help.endswith(".") and (option.sets is None) == bool(option.metavar) for option in options)
