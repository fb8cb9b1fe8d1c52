"""Disks that outlive a container: folders of its host, and network volumes, which outlive the machines too."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import PlainValidator

from cloudrl.errors import SpecError
from cloudrl.spec.base import Spec
from cloudrl.spec.fields import mount_path, text, unique_list_of
from cloudrl.spec.names import RESOURCE_NAME
from cloudrl.spec.quoting import quoted

_EXAMPLE = "For example '/checkpoints:/checkpoints'"
_NETWORK_EXAMPLE = "For example 'checkpoints:/checkpoints', or 'data-${{ dstack.node_rank }}:/data'"
# dstack 0.22.5, server/services/jobs/configurators/base.py (interpolate_job_volumes): these two, and both are
# the rank of the node
_RANK = re.compile(r"\$\{\{\s*dstack\.(node_rank|job_num)\s*\}\}")


class _Mount(Spec):
    def holds(self, path: str) -> bool:
        """Whether `path`, in the container, is on this volume."""
        volume: str = self.path  # type: ignore[attr-defined]
        return volume in ("/", path) or path.startswith(volume + "/")


class Volume(_Mount):
    """An instance volume: `instance_path` on each host appears as `path` in its container.

    It belongs to its host and vanishes with a cloud instance. Field names are dstack's (InstanceMountPoint).

        shared = cloudrl.Volume(instance_path="/mnt/shared/checkpoints", path="/checkpoints")
        cloudrl.Cluster(name="mine", volumes=[shared])
    """

    instance_path: Annotated[str, PlainValidator(mount_path)]
    path: Annotated[str, PlainValidator(mount_path)]
    optional: bool = False
    """Run without it where the backend has no instance volumes."""

    def __str__(self) -> str:
        return f"{self.instance_path}:{self.path}"


def _volume_name(value: object) -> str:
    written = _RANK.sub(lambda match: f"${{{{ dstack.{match[1]} }}}}", text(value).strip())
    if not RESOURCE_NAME.fullmatch(_RANK.sub("0", written)):
        raise SpecError(f"{quoted(value)} is not the name of a network volume", hint=_NETWORK_EXAMPLE)
    return written


def _volume_names(value: object) -> tuple[str, ...]:
    names = unique_list_of(_volume_name)([value] if isinstance(value, str) else value)
    if not names:
        raise SpecError("there is no name of a network volume", hint=_NETWORK_EXAMPLE)
    return names


class NetworkMount(_Mount):
    """A network volume, made by `cloudrl volume create`, that appears as `path` in the container.

    Its name may hold `${{ dstack.node_rank }}`: then each node has one of its own, as most clouds ask for, whose
    disks attach to one machine at a time. Of several names dstack takes one that is where the machines are.
    Field names are dstack's (VolumeMountPoint).
    """

    name: Annotated[Sequence[str], PlainValidator(_volume_names)]
    path: Annotated[str, PlainValidator(mount_path)]

    def __str__(self) -> str:
        return f"{','.join(self.name)}:{self.path}"


Mount = Volume | NetworkMount


def parse_mount(value: object) -> Mount:
    """Read a volume: `/host:/container`, `name:/container`, or a mapping with the fields of one.

    Raises:
        SpecError: `value` has another type.
    """
    if isinstance(value, (Volume, NetworkMount)):
        return value
    if isinstance(value, Mapping):
        return Volume.load(value) if "instance_path" in value else NetworkMount.load(value)
    parts = value.split(":") if isinstance(value, str) else []
    if len(parts) != 2:
        raise SpecError(f"{quoted(value)} is neither /host:/container nor name:/container", hint=_EXAMPLE)
    source, path = parts[0], mount_path(parts[1])
    if "/" in source or not source:
        return Volume(instance_path=mount_path(source), path=path)
    return NetworkMount(name=[source], path=path)


mount_list = unique_list_of(parse_mount, by=lambda mount: mount.path, message="{!r} is the place of two volumes")
"""A check for a list of volumes, no two of which have the same place in the container."""
