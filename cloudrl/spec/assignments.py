"""Values set by a dotted path: `dstack.backends=[aws, gcp]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudrl.errors import SpecError
from cloudrl.spec.yaml_core import load_value

if TYPE_CHECKING:
    from collections.abc import Iterable


def assigned(values: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """The same values with `gpu=H100:8` or `dstack.backends=[aws, gcp]` set: a dotted path, and a value in YAML.

    Args:
        values: field -> value.
        assignments: in their order; a later one wins. Whether there is such a field is for the model to say.

    Raises:
        SpecError: there is no `=`, no YAML, or the path leads into what is no mapping.
    """
    made = dict(values)
    for each in assignments:
        path, equals, value = each.partition("=")
        if not equals:
            raise SpecError(f"{each!r} has no value", hint=f"{each}=VALUE")
        made = _with(made, path.split("."), load_value(value, each), each)
    return made


def _with(values: Mapping[str, Any], path: list[str], value: object, shown: str) -> dict[str, Any]:
    name, *rest = path
    if not name:
        raise SpecError(f"{shown!r} has an empty name in its path", hint="For example dstack.backends=[aws]")
    if not rest:
        return {**values, name: value}
    inner = values.get(name)
    if explicit_fields := getattr(inner, "explicit_fields", None):  # a nested Spec
        inner = explicit_fields()
    if not isinstance(inner, (Mapping, type(None))):
        raise SpecError(f"{shown!r}: {name} is {inner!r}, which has no {rest[0]!r}", hint=f"{name}=VALUE")
    return {**values, name: _with(inner or {}, rest, value, shown)}
