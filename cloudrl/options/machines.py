"""The options for fields of clusters, fleets and volumes; `--set` sets any other field.

They are apart from the fields because pydantic, which checks those, is too slow for `--help`; a test compares names.
"""

from collections.abc import Mapping
from typing import Annotated, TypedDict

from cloudrl.options.declaration import Option
from cloudrl.options.job import ENV

_GPUS = "GPUs per node: 80GB..:8, amd:MI300X:8, none."


class ClusterOptions(TypedDict, total=False):
    """Of a cluster that is started for a job: fields of `cloudrl.Cluster`."""

    nodes: Annotated[int, Option("Number of nodes.", "N")]
    gpu: Annotated[str, Option(_GPUS, "SPEC", read=lambda typed: 0 if typed == "none" else typed)]
    image: Annotated[str, Option("Container image. Default: verl's own.", "IMAGE")]
    setup: Annotated[list[str], Option("Command to run first on every node. Repeatable.", "COMMAND")]
    secrets: Annotated[list[str], Option("Secret to pass to every process. Repeatable.", "NAME", names=("--secret",))]
    checkpoints: Annotated[str, Option("Folder on the nodes for checkpoints.", "DIR")]
    volumes: Annotated[
        list[str],
        Option("/host:/container, or name:/container for a network volume. Repeatable.", "A:B", names=("--volume",)),
    ]
    down_when_idle: Annotated[str, Option("Stop the cluster after this long without a job: 30m.", "TIME")]
    max_cost: Annotated[float, Option("Stop the cluster once it has cost this much.", "DOLLARS")]


class PreparedOptions(TypedDict, total=False):
    """Of a cluster that is there before any job: what it prepares for jobs."""

    data: Annotated[list[str], Option("Data set to prepare for jobs. Repeatable.", "NAME|HUB_ID|PATH")]
    models: Annotated[list[str], Option("Model to download for jobs. Repeatable.", "HUB_ID", names=("--model",))]
    env: Annotated[Mapping[str, str], ENV]


class FleetOptions(TypedDict, total=False):
    """Fields of `cloudrl.Fleet`."""

    nodes: Annotated[str, Option("Maximum number of machines, or a range such as 2..4.", "N|A..B")]
    gpu: Annotated[str, Option(_GPUS, "SPEC")]
    idle_duration: Annotated[str, Option("Release a machine after it was idle this long: 30m.", "TIME")]


class SshOptions(TypedDict, total=False):
    """Machines of one's own: keys of the field `ssh_config` of a fleet; one needs the others."""

    hosts: Annotated[list[str], Option("A machine of your own. Repeatable.", "HOST", names=("--ssh-host",))]
    user: Annotated[str, Option("User to log in as.", "USER", names=("--ssh-user",))]
    identity_file: Annotated[str, Option("Private SSH key.", "FILE", names=("--ssh-key",))]


class NetworkVolumeOptions(TypedDict, total=False):
    """Fields of `cloudrl.NetworkVolume`."""

    backend: Annotated[str, Option("aws, gcp, runpod or kubernetes.", "NAME")]
    region: Annotated[str, Option("Region of the machines that will use it.", "NAME")]
    size: Annotated[str, Option("Size of a new disk: 500GB.", "SIZE")]
    volume_id: Annotated[str, Option("The cloud's ID of an existing disk.", "ID")]
