"""A file or folder of the user's on its way to the nodes with a job; `uploads` decides which of them go, and how."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from cloudrl.node.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudrl.jobs.working_dir import Entry

By = Literal["package", "agents"]


@dataclass(frozen=True)
class Upload:
    """One file or folder that is sent with the job."""

    text: str
    """As the user wrote it."""
    to: str
    """On the nodes: relative to the job's working directory in a package, absolute through the agents."""
    by: By
    manifest: Manifest
    entries: tuple[Entry, ...] = field(default=(), repr=False, compare=False)
    """On this machine; names start with the name of the file or folder."""

    @property
    def size_bytes(self) -> int:
        """All its files together."""
        return self.manifest.size_bytes

    @property
    def packed(self) -> tuple[Entry, ...]:
        """What it adds to the package."""
        folder = self.to.rsplit("/", 1)[0]
        return tuple(
            replace(entry, name=f"{folder}/{entry.name}") for entry in self.entries if self.by == "package"
        )

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form: what the nodes have of it."""
        return {"text": self.text, "to": self.to, "by": self.by, **self.manifest.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Upload:
        """Read what `to_json` wrote.

        Raises:
            KeyError: A field is missing.
            ValueError: It names no files.
        """
        return cls(value["text"], value["to"], value["by"], Manifest.from_json(value))
