"""A disk that outlives the machines. Field names are dstack 0.22.5's (core/models/volumes.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import PlainValidator, model_validator

from cloudrl.errors import SpecError
from cloudrl.spec.base import FrozenDict, Spec
from cloudrl.spec.durations import duration_or_off
from cloudrl.spec.fields import one_of, optional, unique_list_of, yes_or_no
from cloudrl.spec.names import resource_name
from cloudrl.spec.offers import Tags, identifier
from cloudrl.spec.sizes import Size

if TYPE_CHECKING:
    from typing_extensions import Self

_KUBERNETES = ("claim_name", "storage_class_name", "access_modes", "read_only")
# core/models/volumes.py: a class for each backend, and these are their fields
_FIELDS_OF: dict[str, tuple[str, ...]] = {
    "aws": ("region", "availability_zone", "size", "volume_id"),
    "gcp": ("region", "availability_zone", "size", "volume_id"),
    "runpod": ("region", "size", "volume_id"),
    "kubernetes": ("region", "size", *_KUBERNETES),
    "daytona": ("volume_id",),
    "lium": ("volume_id",),
}
VOLUME_BACKENDS = tuple(_FIELDS_OF)
# Kubernetes 1.34, PersistentVolumeAccessMode
ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")


def _size(value: object) -> str:
    size = Size.parse(value)
    if size.size_gb < 1:
        raise SpecError(
            f"{value!r} is less than 1GB, and dstack counts whole ones", hint="For example '500GB'"
        )
    if size.size_gb % 1:
        raise SpecError(
            f"{value!r} is not a whole number of GB; did you mean '{math.ceil(size.size_gb)}GB'?",
            hint="dstack would leave out the rest",
        )
    return str(size)


class NetworkVolume(Spec):
    """A network volume: new, with `size`, or one that the cloud has already, with its id.

    Mounted by `Cluster(volumes=["name:/path"])`. Which fields a volume can have depends on its backend.
    """

    name: Annotated[str, PlainValidator(resource_name)]
    backend: Annotated[str, PlainValidator(one_of(VOLUME_BACKENDS, "a backend with network volumes"))]
    region: Annotated[str | None, PlainValidator(optional(identifier))] = None
    """Where the machines are going to be: a volume can be mounted there only."""
    availability_zone: Annotated[str | None, PlainValidator(optional(identifier))] = None
    size: Annotated[str | None, PlainValidator(optional(_size))] = None
    volume_id: Annotated[str | None, PlainValidator(optional(identifier))] = None
    """The cloud's id of a disk that exists. dstack never deletes such a disk."""
    claim_name: Annotated[str | None, PlainValidator(optional(identifier))] = None
    """The same for Kubernetes: the PersistentVolumeClaim."""
    storage_class_name: Annotated[str | None, PlainValidator(optional(identifier))] = None
    access_modes: Annotated[
        Sequence[str], PlainValidator(unique_list_of(one_of(ACCESS_MODES, "an access mode of Kubernetes")))
    ] = ()
    """`ReadWriteMany` lets all nodes of a cluster share it; dstack's default is `ReadWriteOnce`."""
    read_only: Annotated[bool, PlainValidator(yes_or_no)] = False
    auto_cleanup_duration: Annotated[str | None, PlainValidator(optional(duration_or_off))] = None
    """dstack deletes the volume, and all that lies on it, when unused for so long; None means never."""
    tags: Tags = FrozenDict()

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        self._check_backend()
        existing = self.volume_id or self.claim_name
        sized = "size" in _FIELDS_OF[self.backend]
        if sized and existing is None and self.size is None:
            identifier = "claim_name" if self.backend == "kubernetes" else "volume_id"
            raise SpecError(
                f"neither size nor {identifier} is given",
                hint=f"size: 500GB for a new disk, {identifier} for one that exists",
            )
        if existing is not None and self.size is not None:
            raise SpecError(
                f"size {self.size!r} is for a new disk, and {existing!r} exists", hint="Leave one of them out"
            )
        if existing is not None and self.auto_cleanup_duration not in (None, "off"):
            raise SpecError(
                f"auto_cleanup_duration {self.auto_cleanup_duration!r} is for disks that dstack made, and "
                f"{existing!r} exists already",
                hint="Leave auto_cleanup_duration out",
            )
        return self

    def _check_backend(self) -> None:
        offered = _FIELDS_OF[self.backend]
        every = ("region", "availability_zone", "size", "volume_id", *_KUBERNETES)
        for name in every:
            if name not in offered and getattr(self, name) not in (None, (), False):
                where = [backend for backend, names in _FIELDS_OF.items() if name in names]
                raise SpecError(
                    f"a volume of {self.backend} has no {name}",
                    hint=f"Fields for {self.backend}: {', '.join(offered)}; {name} is for {', '.join(where)}",
                )
        if "region" in offered and self.region is None and self.backend != "kubernetes":
            raise SpecError(f"a volume of {self.backend} needs a region", hint="region: us-east-1")
