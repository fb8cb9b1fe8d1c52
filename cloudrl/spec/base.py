"""What all declared values have in common: strict, frozen, and an error that names the field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import Parameter, Signature
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from cloudrl.errors import SpecError, did_you_mean
from cloudrl.protocol.secret_names import is_secret
from cloudrl.spec.quoting import kind_of, masked, quoted
from cloudrl.spec.yaml_core import load_value

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from typing_extensions import Self

V = TypeVar("V")


class Spec(BaseModel):
    """Something the user declares. Unknown fields and wrong values raise `SpecError` at construction."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    sections: ClassVar[tuple[str, ...]] = ()
    """Fields that one provider alone understands."""

    if not TYPE_CHECKING:  # a written __init__ would hide the field names from type checkers

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as failure:
                _raise_spec_error(type(self), failure)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Let `help` show the types of fields instead of the functions that check them."""
        parameters = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if field.is_required() else field.default,
                annotation=_plain(field.annotation),
            )
            for name, field in cls.model_fields.items()
        ]
        cls.__signature__ = Signature(parameters)

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Self:
        """Build from a mapping, as YAML or JSON gives it.

        Raises:
            SpecError: `values` is not a mapping with text keys, or what it holds is wrong.
        """
        if not isinstance(values, Mapping):
            raise SpecError(f"{cls.__name__}: expected fields with values, got {quoted(values)}")
        for key in values:
            if not isinstance(key, str):
                raise SpecError(f"{cls.__name__}: field name {quoted(key)} is not text")
        return cls(**values)

    def explicit_fields(self) -> dict[str, Any]:
        """Field name -> value, for the fields that were given a value."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}

    def replace(self, **fields: Any) -> Self:
        """The same with other values in some fields.

        Raises:
            SpecError: A field is unknown or its value wrong.
        """
        return type(self)(**{**self.explicit_fields(), **fields})

    def with_set(self, *assignments: str) -> Self:
        """The same after `gpu=H100:8`, `dstack.backends=[aws, gcp]`: dotted paths, and values in YAML.

        Raises:
            SpecError: A field is unknown, a value is wrong, or an argument is not an assignment.
        """
        return type(self).load(assigned(self.explicit_fields(), assignments))


def _plain(annotation: Any) -> Any:
    """A type without what `Annotated` adds to it, within a union too."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(_plain(each) for each in get_args(annotation))]  # noqa: UP007 - of as many as it has
    return annotation


class FrozenDict(dict[str, V]):
    """A dict that cannot be changed, so that a frozen model is frozen all the way down."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this mapping belongs to a frozen value; make a new value instead")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict[V]], tuple[dict[str, V]]]:
        # pickle and copy would otherwise fill an empty one item by item
        return type(self), (dict(self),)


def _raise_spec_error(model: type[Spec], failure: ValidationError) -> NoReturn:
    errors = failure.errors(include_url=False)
    lines = [_line(model, error) for error in errors]
    hints = [hint for error in errors if (hint := _hint(model, error))]
    raise SpecError("\n".join(lines), hint=hints[0] if hints else None) from None


def _line(model: type[Spec], error: ErrorDetails) -> str:
    owner, place = model.__name__, ".".join(str(part) for part in error["loc"])
    field = str(error["loc"][0]) if error["loc"] else ""
    kind = error["type"]
    if kind == "extra_forbidden":
        return f"{owner}: unknown field {quoted(field)}{did_you_mean(field, model.model_fields)}"
    if kind == "missing":
        return f"{owner}: field {field!r} is missing"
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, SpecError):
        return f"{owner}.{place}: {cause.message}" if place else f"{owner}: {cause.message}"
    text = error["msg"].removeprefix("Input should be ")
    hides = any(is_secret(str(part)) for part in error["loc"])
    shown = kind_of(error["input"]) if hides else quoted(error["input"])
    return f"{owner}.{place}: {shown} is not {text}"


def _hint(model: type[Spec], error: ErrorDetails) -> str | None:
    if error["type"] in ("extra_forbidden", "missing"):
        fields_hint = f"Fields of {model.__name__}: {', '.join(model.model_fields)}"
        field = error["loc"][0]
        owners = [f"{owner_name}: {{{masked(str(field))}: ...}}" for owner_name in model.sections]
        section = f"What only one provider knows goes into its section: {', '.join(owners)}"
        return "\n".join([fields_hint, *([section] if owners else [])])
    cause = error.get("ctx", {}).get("error")
    return cause.hint if isinstance(cause, SpecError) else None


def assigned(values: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """The same values with `gpu=H100:8` or `dstack.backends=[aws, gcp]` set: a dotted path, and a value in YAML.

    Args:
        values: field -> value.
        assignments: in their order; a later one wins. Whether there is such a field is for the model to say.

    Raises:
        SpecError: there is no `=`, no YAML, or the path leads into what is not a mapping.
    """
    made = dict(values)
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        if not equals:
            raise SpecError(f"{quoted(assignment)} has no value", hint=f"{masked(assignment)}=VALUE")
        made = _with_path(made, path.split("."), load_value(value, masked(assignment)), assignment)
    return made


def _with_path(values: Mapping[str, Any], path: list[str], value: object, shown: str) -> dict[str, Any]:
    name, *rest = path
    if not name:
        raise SpecError(f"{quoted(shown)} has an empty name in its path", hint="For example: dstack.backends=[aws]")
    if not rest:
        return {**values, name: value}
    inner = values.get(name)
    if explicit_fields := getattr(inner, "explicit_fields", None):  # a nested Spec
        inner = explicit_fields()
    if not isinstance(inner, (Mapping, type(None))):
        raise SpecError(f"{quoted(shown)}: {name} is {quoted(inner)}, which has no {rest[0]!r}", hint=f"{name}=VALUE")
    return {**values, name: _with_path(inner or {}, rest, value, shown)}
