"""A section of a declaration that one provider alone understands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainValidator

from cloudrl.errors import SpecError
from cloudrl.spec.base import FrozenDict
from cloudrl.spec.fields import text


def _section(value: object) -> FrozenDict[Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{value!r} is not a mapping", hint="For example {'backends': ['aws', 'gcp']}")
    return frozen(value)  # type: ignore[no-any-return]


def frozen(value: object) -> Any:
    """What YAML can hold, frozen all the way down."""
    if isinstance(value, Mapping):
        return FrozenDict({text(key): frozen(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(frozen(item) for item in value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return text(value)


Section = Annotated[Mapping[str, Any], PlainValidator(_section)]
"""A plain mapping that is passed through as it is, frozen all the way down. The provider's own models check it."""
