"""A folder of the host that a container sees."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainValidator

from cloudrl.errors import SpecError
from cloudrl.spec.base import Spec
from cloudrl.spec.fields import mount_path

_EXAMPLE = "For example '/checkpoints:/checkpoints'"


class Volume(Spec):
    """An instance volume: `instance_path` on each host appears as `path` in its container.

    It belongs to its host and vanishes with a cloud instance. Field names are dstack's (InstanceMountPoint).
    """

    instance_path: Annotated[str, PlainValidator(mount_path)]
    path: Annotated[str, PlainValidator(mount_path)]

    @classmethod
    def parse(cls, value: object) -> Volume:
        """Read `/host:/container`.

        Raises:
            SpecError: `value` is not two absolute paths with a colon between them.
        """
        if isinstance(value, Volume):
            return value
        parts = value.split(":") if isinstance(value, str) else []
        if len(parts) != 2:
            raise SpecError(f"{value!r} is not /host:/container", hint=_EXAMPLE)
        return cls(instance_path=mount_path(parts[0]), path=mount_path(parts[1]))

    def holds(self, path: str) -> bool:
        """Whether `path`, in the container, lies on this volume."""
        return self.path in ("/", path) or path.startswith(self.path + "/")

    def __str__(self) -> str:
        return f"{self.instance_path}:{self.path}"
