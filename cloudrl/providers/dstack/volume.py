"""A network volume as it is declared: a disk that outlives the machines."""

from typing import Annotated, ClassVar

from pydantic import PlainValidator

from cloudrl.spec.base import FrozenDict, Spec
from cloudrl.spec.fields import PlainText, Section, one_line, optional, plain_text
from cloudrl.spec.names import resource_name
from cloudrl.spec.sizes import size


def _size(value: object) -> str:
    return size(plain_text(value))


class NetworkVolume(Spec):
    """A network volume of dstack: new, with `size`, or one that the cloud has already, with its id.

    Mounted by `Cluster(volumes=["name:/path"])`. Which fields a volume can have depends on its backend; dstack's own
    models check that when it is rendered.
    """

    sections: ClassVar[tuple[str, ...]] = ("dstack",)

    name: Annotated[str, PlainValidator(resource_name)]
    backend: Annotated[str, PlainValidator(one_line)]
    region: PlainText = None
    """Where the machines are going to be: a volume can be mounted there only."""
    size: Annotated[str | None, PlainValidator(optional(_size))] = None
    volume_id: PlainText = None
    """The cloud's id of a disk that exists. dstack never deletes such a disk."""
    dstack: Section = FrozenDict()
    """All else that dstack knows of a volume: availability_zone, claim_name, access_modes, tags, ..."""
