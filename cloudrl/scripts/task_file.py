"""What a task of dstack and one of SkyPilot have in common: a script, variables, and the fields of a cluster."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudrl.errors import SpecError
from cloudrl.protocol.secret_names import is_secret
from cloudrl.scripts.lines import Fate, Line
from cloudrl.scripts.sandbox import HOME
from cloudrl.spec.ports import Port

_SECRET_REF = re.compile(r"\$\{\{\s*secrets\.(\w+)\s*\}\}")


@dataclass(frozen=True)
class TaskFile:
    """What a file says.

    Attributes:
        kind: `dstack` or `SkyPilot`.
        script: Its commands as one script.
        env: Variables with their values, for the script.
        wanted: Variables without a value.
        cluster: Fields of a cluster.
        working_dir: The folder that it sends.
        mounted: Paths on the nodes -> files and folders of this machine that it sends there.
        lines: What became of its fields.
    """

    kind: str
    script: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    wanted: tuple[str, ...] = ()
    cluster: Mapping[str, Any] = field(default_factory=dict)
    working_dir: str | None = None
    mounted: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()


def kind_of_file(values: Mapping[str, Any]) -> str | None:
    """`dstack` or `SkyPilot`, by the fields of a file; None for one of cloudrl's or of another."""
    if values.get("type") in ("task", "service", "dev-environment"):
        return "dstack"
    is_sky = "run" in values or ("setup" in values and {"resources", "num_nodes"} & set(values))
    return "SkyPilot" if is_sky and "overrides" not in values else None


class Reader:
    """Collects what becomes of a file's fields."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.cluster: dict[str, Any] = {}
        self.env: dict[str, str] = {}
        self.wanted: list[str] = []
        self.mounted: dict[str, str] = {}
        self.lines: list[Line] = []

    def taken(self, text: str, why: str, **fields: Any) -> None:
        """Note a field that became `fields` of the cluster."""
        self.cluster |= fields
        self.lines.append(Line(Fate.TAKEN, text, why))

    def dropped(self, text: str, why: str) -> None:
        """Note a field that is not needed."""
        self.lines.append(Line(Fate.DROPPED, text, why))

    def unknown(self, text: str, why: str) -> None:
        """Note a field that cloudrl has no equal for."""
        self.lines.append(Line(Fate.UNKNOWN, text, why))

    def read_env(self, given: Any, label: str) -> None:
        """Variables as a mapping, or as a list of `NAME=VALUE` and `NAME`; those of secrets have no value here."""
        if isinstance(given, list):
            pairs = [str(each).partition("=")[::2] if "=" in str(each) else (str(each), None) for each in given]
        else:
            pairs = list((given or {}).items()) if isinstance(given, Mapping) else []
        for name, value in pairs:
            if value is None or _SECRET_REF.search(str(value)):
                if is_secret(str(name)):
                    self.dropped(f"{label}: {name}", f"a secret stands in no file: cloudrl submit ... --env {name}")
                else:
                    self.wanted.append(str(name))
            else:
                self.env[str(name)] = text_of(value)

    def local_file(self, text: str, place: str, source: str) -> None:
        """Note a file or folder of this machine that the file sends to a path on the nodes."""
        self.mounted[on_nodes(place)] = source
        self.taken(text, f"overrides that name {place} name {source}, which is sent with each job")

    def ports(self, given: Any) -> None:
        """Ports to forward, but those that cloudrl forwards anyway."""
        listed = given if isinstance(given, list) else [given] if given is not None else []
        kept = []
        for each in map(str, listed):
            inner = each.rpartition(":")[2]
            if inner in ("8265", "8266"):
                self.taken(f"ports: {each}", "Ray's dashboard is always forwarded")
                continue
            try:
                kept.append(Port.parse(each))
                self.taken(f"ports: {each}", "ports of the cluster")
            except SpecError:
                self.unknown(f"ports: {each}", "cloudrl forwards single ports")
        if kept:
            self.cluster["ports"] = [
                each for each in map(str, listed) if each.rpartition(":")[2] not in ("8265", "8266")
            ]

    def image(self, given: Any) -> None:
        """An image with verl; any other would leave the nodes without it."""
        if given:
            name = str(given).removeprefix("docker:")
            if "verl" not in name.lower():
                self.dropped(
                    f"image: {name}", "cloudrl takes the image of its verl; another one that has verl: --image"
                )
                return
            self.taken(
                f"image: {name}", "image of the cluster; without it cloudrl takes the one of its verl", image=name
            )


def on_nodes(path: str) -> str:
    """An absolute path of the nodes, where the home folder is root's."""
    return posixpath.normpath(posixpath.join(HOME, path.removeprefix("~/")))


def listed(value: Any) -> list[Any]:
    """A list as it is, nothing as an empty one, and a single value as a list of it."""
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]


def text_of(value: Any) -> str:
    """A variable's value as a shell has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
