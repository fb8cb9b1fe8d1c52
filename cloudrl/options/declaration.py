"""How an option of the command line is declared: on the field whose value it gives.

Standard library only, as are the modules with declarations: `cloudrl --help` imports them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Option:
    """An option of the command line, in the annotation of the field that it sets.

        steps: Annotated[int | None, Option("Total training steps.", "N")] = None

    Attributes:
        help: one or two sentences, for `--help` and docs/options.md.
        metavar: how both show the value; None for a flag.
        names: the flag's names, unless it is called as the field.
        sets: the field's value where the option is a flag.
        typed: the type of what is typed, where it is not the field's own.
        read: makes the field's value of what is typed.
        least, most: of a number that is typed.
        variable: of the environment, which gives the value where nothing is typed.
        is_alias: whether it is a short form of overrides. Runs that differ in such an option are compared by it.
    """

    help: str
    metavar: str | None = None
    names: tuple[str, ...] = ()
    sets: Any = None
    typed: Any = None
    read: Callable[[Any], Any] = lambda value: value
    least: float | None = None
    most: float | None = None
    variable: str | None = None
    is_alias: bool = False


@dataclass(frozen=True)
class Declared:
    """An option with its field, the parameter of a command that receives it, and that parameter's type."""

    field: str
    parameter: str
    typed: Any
    option: Option

    @property
    def names(self) -> tuple[str, ...]:
        """As they are typed, the long one first."""
        return self.option.names or (f"--{self.parameter.replace('_', '-')}",)

    def words(self, value: Any) -> list[str]:
        """The words by which a value of the field is typed; none for the value of a field that was left out."""
        if self.option.sets is not None:
            return [self.names[0]] if value == self.option.sets else []
        values = value if isinstance(value, tuple) else (value,)
        return [f"{self.names[0]}={one}" for one in values if one is not None]


def declared(fields: type) -> Iterator[Declared]:
    """The options of a dataclass or a TypedDict, in the order of its fields. A field may have several flags."""
    for field, hint in get_type_hints(fields, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        own, *options = get_args(hint)
        for option in options:
            parameter = option.names[0].lstrip("-").replace("-", "_") if option.names else field
            parameter = f"{parameter}_" if iskeyword(parameter) else parameter
            typed = bool if option.sets is not None else option.typed or _without_none(own)
            yield Declared(field, parameter, typed, option)


def read_typed(fields: type, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Field -> value, of what was typed for the parameters of `declared`; the others are left to their defaults."""
    values = {}
    for entry in declared(fields):
        value = typed.get(entry.parameter)
        if entry.option.sets is not None and value:
            values[entry.field] = entry.option.sets
        elif entry.option.sets is None and value is not None:
            values[entry.field] = entry.option.read(value)
    return values


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        [hint] = [argument for argument in get_args(hint) if argument is not NoneType]
    return hint
