"""Values that the checks of verl's dataclasses see: instances, sections of a configuration, and what is not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cloudrl.verl.source.shapes import Shape


class _Unknown:
    """What only a node could tell, such as a tokenizer. Whatever is computed from it is unknown, too."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN: Final = _Unknown()


class RefusedByVerl(Exception):  # a finding, no fault of ours
    """verl's own code raises here.

    Attributes:
        text: what it says, in one line.
        at: its file and function in verl.
        names: the fields that the failing condition looks at.
        keys: keys of the configuration that it reads, with their sections.
        path: the section that was being built; "" in the driver.
        is_new: whether the function that raised has not been left yet.
        choices: what the value may be, where it may be one of a few texts.
    """

    def __init__(self, text: str, at: str = "", names: frozenset[str] = frozenset()) -> None:
        super().__init__(text)
        self.text, self.at, self.names = text, at, names
        self.keys: frozenset[str] = frozenset()
        self.path = ""
        self.is_new = True
        self.choices: tuple[str, ...] = ()


class NotTold(Exception):  # as above
    """This machine cannot follow verl's code any further."""


@dataclass
class Instance:
    """One of verl's dataclasses with its values."""

    shape: Shape
    attributes: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.shape.name.rpartition('.')[2]}(...)"


@dataclass(frozen=True)
class Section:
    """A part of the configuration as OmegaConf hands it to verl: keys are attributes, and an unknown one is refused."""

    values: Mapping[str, Any]
    path: str = ""

    def __repr__(self) -> str:
        return repr(dict(self.values))

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __contains__(self, key: object) -> bool:
        return key in self.values and self.values[key] != "???"  # type: ignore[index]

    def read(self, key: str) -> Any:
        """The value of a key.

        Raises:
            RefusedByVerl: There is no such key, or it has no value.
        """
        if key not in self.values:
            raise RefusedByVerl(f"{self.path}.{key}: the configuration has no such key", names=frozenset({key}))
        value = self.values[key]
        if value == "???":
            raise RefusedByVerl(f"{self.path}.{key} is not set", names=frozenset({key}))
        return self._wrapped(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        """As `DictConfig.get`: a key without a value counts as absent."""
        return self._wrapped(key, self.values[key]) if key in self else default

    def _wrapped(self, key: str, value: Any) -> Any:
        return Section(value, f"{self.path}.{key}".strip(".")) if isinstance(value, Mapping) else value
