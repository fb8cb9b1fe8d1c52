"""Records of tensors changed in place: another storage, another part of a DTensor, another device mesh.

What a record says beside that, such as `requires_grad`, is kept. Forms: see `cloudrl.shards.tensors`.
"""

from collections.abc import Callable
from typing import Any

from cloudrl.shards.pickled import Name, PickledObject, Storage
from cloudrl.shards.tensors import AROUND, METADATA_AT, OF_TYPE, Unreadable


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a contiguous tensor; an empty dimension counts as 1 (torch 2.13, c10/core/Contiguity.h)."""
    strides: list[int] = []
    step = 1
    for count in reversed(shape):
        strides.append(step)
        step *= max(1, count)
    return tuple(reversed(strides))


def storage_of(value: Any) -> Storage:
    """The storage of a plain tensor, whatever is around it.

    Raises:
        Unreadable: It has none.
    """
    args = _plain_args(value)
    if not args or not isinstance(args[0], Storage):
        raise Unreadable("a tensor without a storage")
    return args[0]


def with_view(value: Any, storage: Storage, shape: tuple[int, ...]) -> PickledObject:
    """The record of a plain tensor with another storage, which it begins, and another shape.

    Raises:
        Unreadable: It is another record.
    """

    def change(args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (storage, 0, shape, strides_of(shape), *args[4:])

    return _changed(value, change)


def local_tensor(value: PickledObject) -> PickledObject:
    """The part of a DTensor that a rank has."""
    return _attributes(value)["_local_tensor"]  # type: ignore[no-any-return]


def set_local_tensor(value: PickledObject, local: PickledObject) -> None:
    """Give a DTensor another part."""
    _attributes(value)["_local_tensor"] = local


def spec_of(value: PickledObject) -> PickledObject:
    """How a DTensor is placed."""
    return _attributes(value)["_spec"]  # type: ignore[no-any-return]


def is_dtensor(value: Any) -> bool:
    """Whether it is the record of a DTensor, whose state has a part of a tensor."""
    try:
        return "_local_tensor" in _attributes(value)
    except Unreadable:
        return False


def _attributes(value: Any) -> dict[Any, Any]:
    """The attributes of a DTensor: its state is `(None, attributes)` or these alone."""
    if isinstance(value, PickledObject) and value.name == OF_TYPE and len(value.args) >= 4:
        state = value.args[3]
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict) and "_local_tensor" in part:
                return part
    raise Unreadable("not a DTensor")


def _plain_args(value: Any) -> tuple[Any, ...]:
    found: list[tuple[Any, ...]] = []

    def take(args: tuple[Any, ...]) -> tuple[Any, ...]:
        found.append(args)
        return args

    _changed(value, take)
    return found[0]


def _changed(value: Any, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> PickledObject:
    """The record with the arguments of the plain tensor within it changed."""
    if not isinstance(value, PickledObject):
        raise Unreadable(f"a {type(value).__name__}")
    args = value.args
    if value.name in METADATA_AT and len(args) >= 4:
        new = change(args)
    elif value.name in AROUND and args:
        new = (_changed(args[0], change), *args[1:])
    elif value.name == OF_TYPE and len(args) >= 3 and isinstance(args[0], Name) and isinstance(args[2], tuple):
        inner = _changed(PickledObject(args[0].text, args[2]), change)
        new = (*args[:2], inner.args, *args[3:])
    else:
        raise Unreadable(f"a {value.name}")
    made = PickledObject(value.name, new, is_new=value.is_new)
    made.state = value.state
    return made
