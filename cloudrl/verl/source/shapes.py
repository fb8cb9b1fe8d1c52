"""What is kept of a release of verl beside its YAML: dataclasses with their checks, and the names it registers.

`reader.py` writes it, `trainer_config/RELEASE/source.json` holds it. Pure: text in, values out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

FILE_NAME = "source.json"


@dataclass(frozen=True)
class Field:
    """A field of a dataclass.

    Attributes:
        type: "int", "float", "bool", "str", "list", "dict", "any", or the full name of a dataclass.
        optional: whether None is among its types, or is its default.
        default: a literal; None if it has none or if it is made by code.
        is_required: whether it has no default.
        is_made: whether its default is made by code, such as a list or another dataclass.
    """

    type: str
    optional: bool = False
    default: Any = None
    is_required: bool = False
    is_made: bool = False


@dataclass(frozen=True)
class Shape:
    """A dataclass of verl.

    Attributes:
        name: its full name, with the module that defines it.
        at: the file, relative to verl's package.
        bases: full names, nearest first, itself not among them.
        fields: its own and those of its bases.
        methods: source of the methods that check values, its own only.
    """

    name: str
    at: str
    bases: tuple[str, ...]
    fields: Mapping[str, Field]
    methods: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A release of verl, or a fork.

    Attributes:
        version: as its wheel says, or its `version/version` file.
        shapes: dataclasses by full name.
        targets: what `_target_` in the YAML names, with the dataclass that it leads to.
        functions: source of the driver's functions that check a configuration, by name, with their file.
        names: registered names by registry, such as "register_adv_est"; a registry called `register` has its file,
            such as "register@experimental/agent_loop".
        constants: literal values that modules with shapes or functions give to names, by file.
        reads: names of keys that its code reads from any configuration.
        programs: modules that run as programs, such as "verl.trainer.main_ppo", with the configuration that Hydra gives
            them, such as "trainer/config/ppo_trainer"; "" for one without. Empty if it was read by an older cloudrl.
    """

    version: str
    shapes: Mapping[str, Shape]
    targets: Mapping[str, str]
    functions: Mapping[str, tuple[str, str]]
    names: Mapping[str, tuple[str, ...]]
    constants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reads: frozenset[str] = frozenset()
    programs: Mapping[str, str] = field(default_factory=dict)

    def shape(self, target: object) -> Shape | None:
        """The dataclass that a `_target_` leads to; None if this release has no such class."""
        name = str(target)
        return self.shapes.get(self.targets.get(name, name))

    @cached_property
    def lineage(self) -> Mapping[str, frozenset[str]]:
        """Last parts of the names of a dataclass and of its bases."""
        return {
            name: frozenset(each.rpartition(".")[2] for each in (name, *shape.bases))
            for name, shape in self.shapes.items()
        }


def to_text(source: Source) -> str:
    """One dataclass or registry a line, so that a change between releases can be read."""
    parts = [f'"version": {json.dumps(source.version)}']
    for name in ("targets", "names", "functions", "constants", "programs"):
        rows = ",\n".join(
            f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(getattr(source, name).items())
        )
        parts.append(f'"{name}": {{\n{rows}\n}}')
    parts.append(f'"reads": {json.dumps(" ".join(sorted(source.reads)))}')
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(_row(shape))}" for name, shape in sorted(source.shapes.items()))
    return "{" + ",\n".join([*parts, f'"shapes": {{\n{rows}\n}}']) + "}\n"


def _row(shape: Shape) -> dict[str, Any]:
    row = {key: value for key, value in asdict(shape).items() if key not in ("name", "fields")}
    fields = {
        name: [each.type + "!" * each.is_made + "?" * each.optional, *([] if each.is_required else [each.default])]
        for name, each in shape.fields.items()
    }
    return {**row, "fields": fields}


def from_text(text: str) -> Source:
    """The inverse of `to_text`."""
    data = json.loads(text)
    shapes = {}
    for name, row in data["shapes"].items():
        fields = {
            key: Field(kind.rstrip("?!"), kind.endswith("?"), next(iter(rest), None), not rest, "!" in kind)
            for key, (kind, *rest) in row["fields"].items()
        }
        shapes[name] = Shape(name, row["at"], tuple(row["bases"]), fields, row["methods"])
    return Source(
        version=data["version"],
        shapes=shapes,
        targets=data["targets"],
        functions={name: (file, source) for name, (file, source) in data["functions"].items()},
        names={name: tuple(each) for name, each in data["names"].items()},
        constants=data["constants"],
        reads=frozenset(data["reads"].split()),
        programs=data.get("programs", {}),
    )
