"""What a pickle becomes when nothing of it is run: names, records of what would have been objects, storages."""

from dataclasses import dataclass
from typing import Any

OTHER_KEY = "#"
"""Stands in a dict for each key that is a tuple, or of another type that takes long to hash."""


@dataclass(frozen=True, slots=True)
class Name:
    """A class, function or constant that the pickle names, as text: `torch._utils._rebuild_tensor_v2`."""

    text: str


class PickledObject:
    """What would have been an object: the name of its class or maker, the arguments, and the state set afterwards.

    `is_new` is whether `__new__` of the class would have made it (NEWOBJ), not a call (REDUCE).
    """

    __slots__ = ("args", "is_new", "name", "state")

    def __init__(self, name: str, args: tuple[Any, ...], *, is_new: bool = False) -> None:
        self.name, self.args, self.is_new = name, args, is_new
        self.state: Any = None

    def get(self, attribute: str) -> Any:
        """An attribute from the state: a dict, or the pair (dict, slots) of a class with slots; None without it."""
        parts = self.state[:2] if isinstance(self.state, tuple) else (self.state,)
        values = [part[attribute] for part in parts if isinstance(part, dict) and attribute in part]
        return values[-1] if values else None


class PickledDict(dict[Any, Any]):
    """What would have been an OrderedDict, or another dict with a class: its name, arguments and attributes besides."""

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: tuple[Any, ...]) -> None:
        super().__init__()
        self.name, self.args = name, args
        self.state: Any = None


@dataclass(frozen=True, slots=True)
class Storage:
    """The persistent id of a storage: `('storage', class, key, device, elements)`."""

    kind: str
    key: str
    elements: int
    device: str = "cpu"
