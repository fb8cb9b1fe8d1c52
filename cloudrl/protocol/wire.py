"""Frozen values as JSON and back, by the types of their fields; what is not of that form is refused."""

import dataclasses
import enum
import functools
from typing import Any, Dict, Type, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Dataclasses become objects, tuples lists, enums their values."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def from_json(kind: Type[T], data: Any) -> T:
    """Read what `to_json` made of a dataclass. Unknown keys are ignored: the other side may be newer.

    Raises:
        ValueError: it has another type; the message names the field.
    """
    value: T = _read(kind, data, kind.__name__)
    return value


def _read(kind: Any, data: Any, where: str) -> Any:  # noqa: PLR0911  one for each kind
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if origin is Union:  # Optional
        return None if data is None else _read(inner[0], data, where)
    if origin is dict and isinstance(data, dict):
        return {str(key): _read(inner[1], item, f"{where}[{key}]") for key, item in data.items()}
    if origin is tuple and isinstance(data, list):
        return tuple(_read(inner[0], item, f"{where}[]") for item in data)
    if dataclasses.is_dataclass(kind) and isinstance(data, dict):
        return _object(kind, data, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum) and isinstance(data, str):
        return kind(data)
    wanted = (int, float) if kind is float else origin or kind
    if dataclasses.is_dataclass(kind) or not isinstance(data, wanted) or (type(data) is bool) != (kind is bool):
        raise ValueError(f"{where} is {data!r:.80}")
    return data


def _object(kind: Any, data: Dict[str, Any], where: str) -> Any:
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in data:
            values[field.name] = _read(_hints(kind)[field.name], data[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}.{field.name} is missing")
    return kind(**values)


@functools.lru_cache(maxsize=None)
def _hints(kind: Any) -> Dict[str, Any]:
    return get_type_hints(kind)
