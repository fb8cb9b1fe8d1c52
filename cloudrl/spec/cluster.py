"""A Ray cluster as the user declares it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import PlainValidator, model_validator
from typing_extensions import Self

from cloudrl.errors import SpecError
from cloudrl.spec.base import FrozenDict, Spec
from cloudrl.spec.fields import Commands, DataNames, Environment, ModelNames, mount_path, one_line, optional
from cloudrl.spec.gpu import Cpu, Gpu
from cloudrl.spec.nearest import did_you_mean
from cloudrl.spec.resources import Resources
from cloudrl.spec.sizes import Size, SizeRange
from cloudrl.spec.volume import Volume

# dstack 0.22.5, core/services/__init__.py: validate_dstack_resource_name
_NAME = re.compile(r"[a-z][a-z0-9-]{1,40}")
# dstack 0.22.5, core/models/unix.py: name or number, and the same for the group
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
PYTHON_VERSIONS = ("3.10", "3.11", "3.12")
"""What dstack's own image offers and verl 0.9 runs on."""


def _name(value: object) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    rule = "a letter, then letters, digits and dashes, all lower case, 2 to 41 characters"
    raise SpecError(f"{value!r} is not a name{_slug(value)}", hint=f"A name is {rule}")


def _slug(value: object) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", str(value).lower()).strip("-0123456789")[:41]
    return f"; did you mean {slug!r}?" if _NAME.fullmatch(slug) else ""


def _nodes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{value!r} is not a number of nodes", hint="A whole number from 1, for example 2")
    return value


def _image(value: object) -> str:
    image = one_line(value)
    if not _IMAGE.fullmatch(image):
        raise SpecError(
            f"{value!r} is not the name of an image", hint="For example 'verlai/verl:vllm024.dev2'"
        )
    return image


def _user(value: object) -> str:
    user = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(user, str) or not _USER.fullmatch(user):
        raise SpecError(f"{value!r} is not user or user:group", hint="For example 'root' or '1000:1000'")
    return user


def _python(value: object) -> str:
    if value in PYTHON_VERSIONS:
        return str(value)
    wanted = "3.10" if value == 3.1 else str(value)  # YAML reads 3.10 as the number 3.1
    guess = (
        f"; did you mean {wanted!r}, in quotes?"
        if wanted in PYTHON_VERSIONS
        else did_you_mean(wanted, PYTHON_VERSIONS)
    )
    raise SpecError(f"{value!r} is not a Python version{guess}", hint=f"One of {', '.join(PYTHON_VERSIONS)}")


def _volumes(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise SpecError(f"{value!r} is one text where a list is expected; write [{value!r}]")
    if not isinstance(value, Sequence):
        raise SpecError(
            f"{value!r} is not a list of volumes", hint="For example ['/checkpoints:/checkpoints']"
        )
    volumes = [Volume.parse(item) for item in value]
    for index, volume in enumerate(volumes):
        if any(volume.path == other.path for other in volumes[:index]):
            raise SpecError(f"{volume.path!r} is the place of two volumes")
    return tuple(str(volume) for volume in volumes)


def _written(parse: Callable[[object], object]) -> PlainValidator:
    """Check with `parse` and keep the text in its usual spelling."""
    return PlainValidator(optional(lambda value: str(parse(value))))


class Cluster(Spec):
    """N equal nodes that form one Ray cluster, with the data and models that its jobs need.

    Fields hold what one would write by hand, in dstack's spelling and under dstack's names where dstack has
    them; `resources`, `mounts` and `gpus_per_node` give the same, parsed.
    """

    name: Annotated[str, PlainValidator(_name)]
    nodes: Annotated[int, PlainValidator(_nodes)] = 1
    image: Annotated[str | None, PlainValidator(optional(_image))] = None
    """Container image; None means the image of the verl release that cloudrl is for."""
    python: Annotated[str | None, PlainValidator(optional(_python))] = None
    """Take dstack's own image with this Python instead of `image`."""
    user: Annotated[str | None, PlainValidator(optional(_user))] = None
    setup: Commands = ()
    """Shell commands that the agent runs on every node before Ray starts."""
    env: Environment = FrozenDict()
    """Variables of every process on every node. Values are taken as they are: nothing is expanded."""
    gpu: Annotated[str | None, _written(Gpu.parse)] = None
    """GPUs of each node, for example `80GB:8`; None means a cluster without GPUs."""
    cpu: Annotated[str | None, _written(Cpu.parse)] = None
    memory: Annotated[str | None, _written(SizeRange.parse)] = None
    disk: Annotated[str | None, _written(SizeRange.parse)] = None
    shm_size: Annotated[str | None, _written(Size.parse)] = None
    data: DataNames = ()
    models: ModelNames = ()
    checkpoints: Annotated[str, PlainValidator(mount_path)] = "/checkpoints"
    """The folder, in the container, that jobs save into."""
    volumes: Annotated[Sequence[str], PlainValidator(_volumes)] = ("/checkpoints:/checkpoints",)
    """Folders of the hosts, `/host:/container`. Not given: the checkpoints folder, under the same path."""

    @model_validator(mode="before")
    @classmethod
    def _keep_checkpoints_on_the_host(cls, values: dict[str, Any]) -> dict[str, Any]:
        if "volumes" in values or "checkpoints" not in values:
            return values
        try:
            folder = mount_path(values["checkpoints"])
        except SpecError:  # the field's own check reports it
            return values
        return {**values, "volumes": [f"{folder}:{folder}"]}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.image is not None and self.python is not None:
            raise SpecError(
                f"image {self.image!r} and python {self.python!r} exclude each other",
                hint="python= picks dstack's own image with that Python; leave one of the two out",
            )
        if self.volumes and not any(mount.holds(self.checkpoints) for mount in self.mounts):
            raise SpecError(
                f"checkpoints {self.checkpoints!r} lies on none of the volumes {', '.join(self.volumes)}, "
                "so it would vanish with the container",
                hint=f"Add '{self.checkpoints}:{self.checkpoints}' to volumes",
            )
        return self

    @property
    def resources(self) -> Resources:
        """What each node must have, parsed."""
        return Resources.load(
            {
                "gpu": self.gpu,
                "cpu": self.cpu,
                "memory": self.memory,
                "disk": self.disk,
                "shm_size": self.shm_size,
            }
        )

    @property
    def mounts(self) -> tuple[Volume, ...]:
        """`volumes`, parsed."""
        return tuple(Volume.parse(volume) for volume in self.volumes)

    @property
    def device(self) -> Literal["gpu", "cpu"]:
        """What jobs compute on."""
        return "cpu" if self.gpus_per_node == 0 else "gpu"

    @property
    def gpus_per_node(self) -> int | None:
        """How many GPUs each node has; None when `gpu` leaves that open."""
        if self.gpu is None:
            return 0
        count = Gpu.parse(self.gpu).count
        return count.exact if count else None
