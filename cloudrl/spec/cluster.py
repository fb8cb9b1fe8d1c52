"""A Ray cluster as the user declares it, and the disk and memory that its models and indexes need."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import PlainValidator, model_validator

from cloudrl.errors import SpecError, did_you_mean
from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.protocol.options import MADE_ON_NODES
from cloudrl.retriever.published import PUBLISHED, Published
from cloudrl.spec.base import FrozenDict, Spec
from cloudrl.spec.data import DataSets
from cloudrl.spec.fields import (
    Commands,
    Dollars,
    Environment,
    ModelNames,
    Positive,
    Section,
    absolute_path,
    mount_path,
    optional,
    release,
    spelled,
    unique_list_of,
)
from cloudrl.spec.gpu import Gpu, image_gpu
from cloudrl.spec.gpu import cpu as parse_cpu
from cloudrl.spec.names import image_name, resource_name, secret_in, secret_name, unix_user
from cloudrl.spec.ports import Port, all_ports, port_texts
from cloudrl.spec.quoting import quoted
from cloudrl.spec.sections import with_sections
from cloudrl.spec.services import SERPAPI, SERPAPI_KEY, Artifacts, Search, Services, agent_service, parse_search
from cloudrl.spec.sizes import duration_with_unit, size, size_range
from cloudrl.spec.volume import Mount, Volume, mount_list, parse_mount

if TYPE_CHECKING:
    from typing_extensions import Self

ROLLOUTS = ("vllm", "sglang")
CHECKPOINTS = "/checkpoints"
_ON_HOSTS = f"/var/lib/cloudrl{CHECKPOINTS}"
"""A folder that can be written on Container-Optimized OS, where `/` is read-only (dstack 0.22.5, core/backends/gcp/
compute.py: `/home` and `/var` are not), and that is mostly on Docker's own disk, whose free bytes dstack reports."""
_VISIBLE_DEVICES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_BASE_GB = 150
"""Image, packages, data and logs; verl's images unpack to some 40 GB."""
_SAVES = 8
"""Checkpoints that are there at once: verl keeps all unless trainer.max_actor_ckpt_to_keep says otherwise."""
SAVE_BYTES = 12
"""Of each parameter in a checkpoint of verl 0.9.1 with FSDP: weight and two moments of Adam in float32."""
_WEIGHT_BYTES = 2
_BILLIONS = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)


@with_sections
class Cluster(Spec):
    """N equal nodes that form one Ray cluster, with the data and models that its jobs need.

    The fields mean the same wherever it runs. What one provider alone understands stands in a section of that
    provider's name, which is passed on as it is, and which its own models check when a plan is made.
    """

    name: Annotated[str, PlainValidator(resource_name)]
    """A lowercase letter, then lowercase letters, digits and dashes; 2 to 41 characters."""
    nodes: Positive = 1
    verl: Annotated[str | None, PlainValidator(optional(release))] = None
    """Release of verl, which decides the image. Default: the newest that cloudrl knows."""
    rollout: Literal["vllm", "sglang"] | None = None
    """`vllm` or `sglang`, which the image must have. Default: the release's usual one."""
    image: Annotated[str | None, PlainValidator(optional(image_name))] = None
    user: Annotated[str | None, PlainValidator(optional(unix_user))] = None
    """User in the container."""
    working_dir: Annotated[str | None, PlainValidator(optional(absolute_path))] = None
    """Where set-up commands run. Jobs run in the folder that is uploaded with them."""
    setup: Commands = ()
    """Shell commands that the agent runs on every node before Ray starts. They read secrets from variables
    (`$NAME`)."""
    services: Services = ()
    """Servers beside Ray on every node: `8000:bash launch.sh`, a `Service` with more fields, or `search:wiki-18`, which
    is short for a `Search`. READY waits for all."""
    artifacts: Artifacts = ()
    """Files that services need, each an `Artifact`, which a command brings to the nodes."""
    env: Environment = FrozenDict()
    """Variables of every process on every node. Values are taken as they are: nothing is expanded."""
    secrets: Annotated[Sequence[str], PlainValidator(unique_list_of(secret_name))] = ()
    """Names of dstack's secrets that become variables of the same name. Their values are not in any file."""
    ports: Annotated[Sequence[str | int], PlainValidator(port_texts)] = ()
    """Forwarded besides Ray's dashboard (8265) and the agent (8266); `9265:8265` moves one of those."""
    gpu: Annotated[str | None, spelled(image_gpu)] = None
    """GPUs of each node, such as `80GB..:8`. Default: a cluster without GPUs."""
    cpu: Annotated[str | None, spelled(parse_cpu)] = None
    """CPUs of each node, such as `32..`."""
    memory: Annotated[str | None, spelled(size_range)] = None
    """Memory of each node, such as `512GB..`."""
    disk: Annotated[str | None, spelled(size_range)] = None
    """Disk of each node, such as `1TB..`."""
    shm_size: Annotated[str | None, spelled(size)] = None
    """Shared memory of each container. Default: 16 GB per GPU."""
    data: DataSets = ()
    """Data sets to prepare: names (`gsm8k`), `owner/name` on the Hub, absolute paths of the nodes, or a `DataSet` with
    more fields. On this machine `up` and `run` also take `./x.jsonl`."""
    models: ModelNames = ()
    """Models on the Hub to download."""
    checkpoints: Annotated[str, PlainValidator(mount_path)] = CHECKPOINTS
    """Folder in the container that jobs save into."""
    volumes: Annotated[Sequence[str | Mount] | None, PlainValidator(optional(mount_list))] = None
    """`/host:/container`, or a network volume: `name:/container` or `name-${{ dstack.node_rank }}:/container`. Default:
    the folder of `checkpoints`, which is `/var/lib/cloudrl/checkpoints` on the hosts, or the same path if you name
    another one."""
    down_when_idle: Annotated[str | None, PlainValidator(optional(duration_with_unit))] = None
    """The cluster ends by itself after so long without a job or a transfer, counted from READY."""
    max_cost: Dollars | None = None
    """The cluster ends by itself when it has cost so many US dollars, earlier attempts included."""
    price_per_hour: Dollars | None = None
    """US dollars of all nodes together. Default: with a `max_cost`, `up` and `run` ask the provider."""
    if TYPE_CHECKING:  # a type checker knows the sections of no other provider
        local: Section = FrozenDict()
        """Of a cluster on this machine: `dashboard_port` for Ray's dashboard. Default: as last time, else 8265, if
        free."""
        dstack: Section = FrozenDict()
        """Fields of a [task](https://dstack.ai/docs/reference/dstack.yml/task) that only dstack has: `fleets`,
        `backends`, `regions`, `spot_policy`, `retry`, `max_duration`, `registry_auth`, `tags`, ..."""
        slurm: Section = FrozenDict()
        """Options of sbatch by their long names (`partition`, `account`, `time`, ...), and cloudrl's own keys."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        self._check_environment()
        self._check_needs()
        if self.mounts and not any(mount.holds(self.checkpoints) for mount in self.mounts):
            raise SpecError(
                f"checkpoints {quoted(self.checkpoints)} is on none of the volumes "
                f"{', '.join(map(str, self.mounts))}, so it would vanish with the container",
                hint=f"Add '{self._checkpoints_on_hosts}:{self.checkpoints}' to volumes",
            )
        return self

    def _check_needs(self) -> None:
        for search in filter(None, map(parse_search, self.services)):
            if search.search == SERPAPI and SERPAPI_KEY not in (*self.secrets, *self.env):
                raise SpecError(f"search:{SERPAPI} needs a key", hint=f"secrets: [{SERPAPI_KEY}]")
        names = [*(artifact.name for artifact in self.artifacts), *self.models]
        for service in (agent_service(declared) for declared in self.services if parse_search(declared) is None):
            for name in service.needs:
                if name not in names:
                    raise SpecError(
                        f"service {service.label} needs {name!r}, which is not an artifact or model of this cluster"
                        f"{did_you_mean(name, names)}",
                        hint=f"artifacts: [{{name: {name}, command: ...}}] brings it to the nodes",
                    )

    def _check_environment(self) -> None:
        for name in self.secrets:
            if name in self.env:
                raise SpecError(f"{name} stands in env and in secrets", hint=f"Leave {name} out of env")
        for name, value in self.env.items():
            if secret_in(value) is not None:
                raise SpecError(
                    f"env {name} names a secret of dstack, and values in env are taken as they are",
                    hint=f"secrets: [{secret_in(value)}] sets the variable from dstack's secret of that name",
                )
        if self.vendor == "amd" and "ROCR_VISIBLE_DEVICES" in self.env:
            for name in _VISIBLE_DEVICES:
                if name in self.env:
                    raise SpecError(
                        f"env sets ROCR_VISIBLE_DEVICES and {name}, and verl's workers refuse the two on AMD",
                        hint="Leave both out: the provider gives a node its GPUs, and Ray each worker one of them",
                    )

    @property
    def shared_memory(self) -> str | None:
        """`shm_size`, or what a node with GPUs needs: Docker's own 64 MB end NCCL and Ray with a bus error.

        16 GB for each GPU, as in verl's guide for dstack (128 GB for 8); memory that is not used is not taken.
        """
        if self.shm_size is not None or self.device == "cpu":
            return self.shm_size
        return f"{16 * (self.gpus_per_node or 8)}GB"

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """`volumes`, parsed, with what None means."""
        if self.volumes is None:
            return (Volume(instance_path=self._checkpoints_on_hosts, path=self.checkpoints),)
        return tuple(parse_mount(volume) for volume in self.volumes)

    @property
    def _checkpoints_on_hosts(self) -> str:
        return _ON_HOSTS if self.checkpoints == CHECKPOINTS else self.checkpoints

    @property
    def forwarded(self) -> tuple[Port, ...]:
        """All ports that are forwarded: Ray's dashboard, the agent, and `ports`."""
        return all_ports(tuple(Port.parse(port) for port in self.ports))

    @property
    def device(self) -> Literal["gpu", "cpu"]:
        """What jobs compute on."""
        return "cpu" if self.gpus_per_node == 0 else "gpu"

    @property
    def needs_cpu_parts(self) -> bool:
        """Whether its agents need what only training on CPUs does: it has no GPUs, or a tiny model or its data."""
        names = [data_set if isinstance(data_set, str) else data_set.name for data_set in self.data]
        is_tiny = any(name in BUILT_IN and BUILT_IN[name].for_cpu for name in names)
        return self.device == "cpu" or is_tiny or any(model in MADE_ON_NODES for model in self.models)

    @property
    def vendor(self) -> str:
        """Who makes the GPUs: `amd` by vendor or by name, else what `gpu` says, else `nvidia`."""
        return "nvidia" if self.gpu is None else Gpu.parse(self.gpu).maker

    @property
    def gpus_per_node(self) -> int | None:
        """How many GPUs each node has; None when `gpu` leaves that open."""
        return 0 if self.gpu is None else Gpu.exact_count(self.gpu)


def disk_for(cluster: Cluster) -> str | None:
    """The disk of each node, such as `700GB..`; None where nothing is known to be large.

    Each node has published indexes, and with GPUs the weights of every model whose name tells its size, and its share
    of the checkpoints of the largest.
    """
    counts = [] if cluster.device == "cpu" else map(billions, cluster.models)
    sizes = [size for size in counts if size is not None]
    index_gb = sum(index.disk_gb for index, _ in _published(cluster))
    if not sizes and not index_gb:
        return None
    saves_gb = _SAVES * SAVE_BYTES * max(sizes, default=0) / cluster.nodes
    gigabytes = _BASE_GB + index_gb + _WEIGHT_BYTES * sum(sizes) + saves_gb
    return f"{math.ceil(gigabytes / 100) * 100}GB.."


def memory_for(cluster: Cluster) -> str | None:
    """The memory of each node, such as `80GB..`, if it holds a published index; faiss does not put it on a GPU."""
    sizes = [
        index.memory_gb - (index.vectors_gb * (cluster.nodes - 1) // cluster.nodes if search.shards else 0)
        for index, search in _published(cluster)
        if search.device == "cpu" or index.engine == "faiss"
    ]
    return f"{sum(sizes)}GB.." if sizes else None


def _published(cluster: Cluster) -> list[tuple[Published, Search]]:
    """The indexes of its search servers that others have published."""
    searches = filter(None, map(parse_search, cluster.services))
    return [(PUBLISHED[search.search], search) for search in searches if search.search in PUBLISHED]


def billions(model: str) -> float | None:
    """Parameters, as a model's name tells them: 7 of `Qwen/Qwen2.5-7B-Instruct`, 56 of `Mixtral-8x7B`, or None."""
    match = _BILLIONS.search(model.rpartition("/")[2])
    return None if match is None else int(match[1] or 1) * float(match[2])
