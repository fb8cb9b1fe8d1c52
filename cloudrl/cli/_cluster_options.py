"""The options that declare a cluster, for every command that takes one. Names are those of `cloudrl.Cluster`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cloudrl.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cloudrl.sdk import Cluster
    from cloudrl.spec import Spec

    S = TypeVar("S", bound=Spec)

NameArgument = Annotated[str, typer.Argument(help="Name of the cluster.")]
OnOption = Annotated[str, typer.Option("--on", metavar="PROVIDER", help="Where: local or dstack.")]
NodesOption = Annotated[int, typer.Option(help="How many nodes.")]
GpuOption = Annotated[
    str | None, typer.Option(help="GPUs of each node, as dstack writes them: 80GB:8, amd:MI300X:8, none.")
]
CpuOption = Annotated[
    str | None, typer.Option(help="CPU cores of each node; 32.. is 32 or more, x86:8 an architecture too.")
]
MemoryOption = Annotated[str | None, typer.Option(help="Memory of each node; 512GB.. is that or more.")]
DiskOption = Annotated[str | None, typer.Option(help="Disk of each node; 1TB.. is that or more.")]
ShmOption = Annotated[str | None, typer.Option("--shm-size", help="Shared memory of each node: 128GB.")]
DataOption = Annotated[list[str] | None, typer.Option(help="A data set to prepare; may be repeated.")]
ModelOption = Annotated[list[str] | None, typer.Option(help="A model to fetch; may be repeated.")]
VerlOption = Annotated[str | None, typer.Option(help="Release of verl; decides the image.")]
RolloutOption = Annotated[str | None, typer.Option(help="vllm or sglang; decides the image.")]
ImageOption = Annotated[str | None, typer.Option(help="Another container image.")]
SetupOption = Annotated[
    list[str] | None, typer.Option(help="A shell command to run first, on every node; may be repeated.")
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env", "-e", metavar="K[=V]", help="A variable of every process; K alone takes this shell's."
    ),
]
SecretOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A dstack secret that every process gets as a variable."),
]
CheckpointsOption = Annotated[str | None, typer.Option(metavar="DIR", help="Folder that jobs save into.")]
VolumeOption = Annotated[
    list[str] | None,
    typer.Option(metavar="A:B", help="/host:/container, or a network volume, name:/container."),
]
FleetOption = Annotated[
    list[str] | None, typer.Option("--fleet", metavar="NAME", help="Run on this fleet; may be repeated.")
]
SpotOption = Annotated[str | None, typer.Option(help="spot, on-demand or auto.")]
MaxPriceOption = Annotated[float | None, typer.Option(help="US dollars an hour for each machine.")]
MaxDurationOption = Annotated[str | None, typer.Option(help="The run ends after this: 24h, 3d.")]
IdleOption = Annotated[
    str | None, typer.Option("--down-when-idle", help="End the cluster after so long without a job: 30m.")
]
MaxCostOption = Annotated[
    float | None, typer.Option(metavar="DOLLARS", help="End the cluster when it has cost so much in all.")
]
PriceOption = Annotated[
    float | None,
    typer.Option(
        metavar="DOLLARS", help="What all nodes cost an hour; only where nobody can be asked for it."
    ),
]
FieldOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=YAML", help="Any other field of cloudrl.Cluster: --set dstack.backends=[aws]."
    ),
]


def shape(
    cpu: CpuOption = None,
    memory: MemoryOption = None,
    disk: DiskOption = None,
    shm_size: ShmOption = None,
    verl: VerlOption = None,
    rollout: RolloutOption = None,
    image: ImageOption = None,
    setup: SetupOption = None,
    secret: SecretOption = None,
    checkpoints: CheckpointsOption = None,
    volume: VolumeOption = None,
    fleet: FleetOption = None,
    spot_policy: SpotOption = None,
    max_price: MaxPriceOption = None,
    max_duration: MaxDurationOption = None,
    down_when_idle: IdleOption = None,
    max_cost: MaxCostOption = None,
    price_per_hour: PriceOption = None,
    field: FieldOption = None,
) -> dict[str, Any]:
    """The block of options of every command that declares a cluster, as fields of it; "set" has those of `--set`."""
    of_dstack = {
        "fleets": fleet, "spot_policy": spot_policy, "max_price": max_price, "max_duration": max_duration,
    }  # fmt: skip
    return {
        "cpu": cpu, "memory": memory, "disk": disk, "shm_size": shm_size, "verl": verl, "rollout": rollout,
        "image": image, "setup": setup, "secrets": secret, "checkpoints": checkpoints, "volumes": volume,
        "dstack": present(of_dstack) or None, "down_when_idle": down_when_idle, "max_cost": max_cost,
        "price_per_hour": price_per_hour, "set": field,
    }  # fmt: skip


def present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those values that were given."""
    return {name: value for name, value in values.items() if value is not None}


def gpus(text: str | None) -> str | None:
    """What `--gpu` says; `none` is a cluster without GPUs."""
    return None if text == "none" else text


def cluster(values: Mapping[str, Any], *, env: Iterable[str] | None = None) -> Cluster:
    """The cluster that the options declare; what was not given is left to the fields' own defaults.

    Args:
        values: fields of the cluster, None for those that were not given; under "set" what `--set` says.
        env: variables, as `--env` takes them.

    Raises:
        SpecError: a value cannot be what it is given for.
        InputError: an `--env` or `--set` is no pair, or says again what another option says.
    """
    from cloudrl.sdk import Cluster

    given = present(values)
    fields = given.pop("set", None)
    if env:
        given["env"] = dict(_variable(each) for each in env)
    return with_set(Cluster, given, fields)


def _variable(text: str) -> tuple[str, str]:
    """NAME and value of `NAME=VALUE`, or of `NAME` alone, whose value is this shell's."""
    name, equals, value = text.partition("=")
    if not equals and name not in os.environ:
        raise InputError(
            f"--env {name}: this shell has no variable {name!r}",
            hint=f"export {name}=..., or --env {name}=VALUE",
        )
    return name, value if equals else os.environ[name]


def with_set(kind: type[S], given: Mapping[str, Any], assignments: Iterable[str] | None) -> S:
    """What the options declare, and `--set FIELD=YAML` beyond them.

    Raises:
        InputError: an option has said it already.
        SpecError: there is no such field, or its value is wrong.
    """
    from cloudrl.spec.assignments import assigned

    values = dict(given)
    for each in assignments or ():
        path = each.partition("=")[0]
        if _stands_in(values, path.split(".")):
            raise InputError(f"--set {path}: {path} is given twice", hint=f"Leave out --set {path}=...")
        values = assigned(values, [each])
    return kind.load(values)


def _stands_in(values: object, path: list[str]) -> bool:
    if not path:
        return True
    return isinstance(values, dict) and path[0] in values and _stands_in(values[path[0]], path[1:])


def pair(option: str, text: str) -> tuple[str, str]:
    """KEY and VALUE of `KEY=VALUE`.

    Raises:
        InputError: there is no `=` in it.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{option} {text!r} has no value", hint=f"{option} {text}=VALUE")
    return key, value
