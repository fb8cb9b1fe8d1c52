"""What a cluster is on this machine: its ports, its folders and the command lines of its agents.

The same declaration runs on dstack, so that its image, its fleets and the like are accepted here: what has no effect
is named. What a job would miss, its checkpoint folder and its secrets, is kept or refused.
"""

import itertools
import os
import re
import secrets
import shlex
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

from cloudrl.errors import CapacityError, CloudrlError, InputError
from cloudrl.node.identity import address_towards
from cloudrl.protocol.folders import secrets_folder
from cloudrl.protocol.options import AgentOptions, Ports
from cloudrl.protocol.secret_names import is_secret, mask_by_form
from cloudrl.protocol.services import Service
from cloudrl.providers.local import processes, state
from cloudrl.providers.local.gpus import gpus_here
from cloudrl.providers.local.processes import MARK
from cloudrl.providers.local.state import LocalState
from cloudrl.providers.model import Plan
from cloudrl.providers.planned import planned_facts
from cloudrl.render.agent import AGENT_FILE
from cloudrl.render.agent_options import HONOURED, agent_options
from cloudrl.spec import Cluster, Volume
from cloudrl.spec.base import Spec
from cloudrl.spec.services import agent_service
from cloudrl.transport.local_ports import bind

OBJECT_STORE_BYTES = 256 * 1024**2
DATA = ("addition",)
MODELS = ("tiny-adder",)
DEFAULT_DASHBOARD_PORT = 8265
_FIRST_PORT = 20_000


class LocalSection(Spec):
    """The section `local` of a cluster."""

    dashboard_port: int | None = None
    """For Ray's dashboard; None is that of last time, else 8265, if free."""


@dataclass(frozen=True, kw_only=True)
class LocalPlan(Plan):
    """The agents that `up` would start."""

    state: LocalState
    commands: tuple[tuple[str, ...], ...]

    place = "on this machine"

    @property
    def honoured(self) -> tuple[str, ...]:
        """See `Plan`: here is no container, no machine to choose and no volume of a cloud."""
        of_volume = () if checkpoint_folder(self.cluster) is None else ("checkpoints", "volumes")
        return (*HONOURED, "local", *of_volume)

    def node_env(self, rank: int) -> dict[str, str]:
        """What one agent gets in addition to the environment of this command."""
        state = self.state
        return {
            **self.cluster.env,
            **{service.variable: f"127.0.0.1:{service.port}" for service in _fixed(self.cluster)},
            "CLOUDRL_PROVIDER": "local",
            "CLOUDRL_CLUSTER": state.name,
            MARK: state.id,
            "CLOUDRL_NODE_RANK": str(rank),
            "CLOUDRL_NODES_NUM": str(state.nodes),
            "CLOUDRL_HEAD_IP": state.ip,
            "CLOUDRL_NODE_IP": state.ip,
        }

    def render(self) -> str:
        """One shell line a node; secrets are masked."""
        lines = [f"# {self.state.nodes} agents on this machine; state in {self.state.folder}"]
        for rank, command in enumerate(self.commands):
            variables = [
                f"{name}={'***' if is_secret(name) else shlex.quote(mask_by_form(value))}"
                for name, value in self.node_env(rank).items()
            ]
            lines.append(" ".join([*variables, shlex.join(map(mask_by_form, command))]))
        return "\n".join(lines) + "\n"


def make_plan(cluster: Cluster) -> LocalPlan:
    """Decide ports and folders; a cluster that is started again keeps the two ports at which clients wait for it.

    Raises:
        CapacityError: the cluster asks for GPUs that this machine does not have.
        InputError: the dashboard's port is given and in use, or this shell does not have a secret.
    """
    for secret in cluster.secrets:
        if not os.environ.get(secret):
            raise InputError(
                f"secret {secret} is not set: on this machine it comes from this shell", hint=f"export {secret}=..."
            )
    gpus = gpus_here(cluster)
    last = state.read(cluster.name)
    dashboard = choose_dashboard_port(LocalSection.load(cluster.local).dashboard_port, cluster=cluster.name, last=last)
    *agent_ports, gcs, client = free_ports(
        cluster.nodes + 2,
        cluster=cluster.name,
        avoid=(dashboard,),
        preferred=last.agent_ports[:1] if last else (),
    )
    asked = agent_options(cluster, None, place=_here)
    services = _services(asked.services, cluster, avoid=(dashboard, gcs, client, *agent_ports))
    cluster_id = secrets.token_hex(8)
    chosen = LocalState(
        name=cluster.name,
        id=cluster_id,
        nodes=cluster.nodes,
        ip=address_towards("192.0.2.1"),
        gcs_port=gcs,
        dashboard_port=dashboard,
        client_port=client,
        agent_ports=tuple(agent_ports),
        ray_temp_dir=f"/tmp/cloudrl-{cluster_id[:8]}",  # noqa: S108  short: Unix socket paths end at 107 bytes
        checkpoint_dir=str(checkpoint_folder(cluster) or ""),
        boot_id=state.boot_id(),
        service_ports=tuple(
            port
            for service in itertools.chain(*services)
            if _can_move(service)
            for port in (service.port, service.peer_port)
            if port
        ),
    )
    options = replace(
        asked,
        gpus=gpus,
        setup=tuple(cluster.setup),  # nothing is installed for search servers: the Python is the user's
        import_check=(),
        data=asked.data or DATA,
        models=asked.models or MODELS,
        is_one_machine=True,
        disks_stay=True,
    )
    commands = tuple(_command(replace(options, services=own), chosen, rank) for rank, own in enumerate(services))
    facts = planned_facts(
        cluster,
        "local",
        checkpoint_dir=str(chosen.checkpoints),
        data_dir=str(chosen.data),
        secrets_dir=secrets_folder(os.getuid(), "RUN-ID"),
        verl_version=_installed("verl"),
    )
    return LocalPlan(
        cluster=cluster,
        facts=replace(facts, ray_version=version("ray"), is_one_machine=True, disks_stay=True),
        state=chosen,
        commands=commands,
    )


def _installed(package: str) -> str | None:
    """The release of a package; None if absent."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _command(options: AgentOptions, state: LocalState, rank: int) -> tuple[str, ...]:
    """The options with what is a node's own: its ports, and folders of its own in that of the cluster."""
    node_ports = Ports(
        agent=state.agent_ports[rank], head_agent=state.agent_ports[0], gcs=state.gcs_port,
        dashboard=state.dashboard_port, client=state.client_port,
        # zero: Ray takes free ports, several nodes share this machine
        dashboard_agent=0, node_manager=0, object_manager=0, worker=(0, 0),
    )  # fmt: skip
    options = replace(
        options,
        checkpoints=state.checkpoints,
        data_dir=state.data,
        run_dir=state.node_dir(rank),
        ray_temp_dir=Path(state.ray_temp_dir, str(rank)),
        object_store_bytes=OBJECT_STORE_BYTES,
        key_file=state.key_file,
        ports=node_ports,
        join_timeout_s=120,
    )
    return (sys.executable, str(state.folder / AGENT_FILE), "run", *options.to_argv())


def _here(text: str) -> str:
    path = Path(text).expanduser().resolve()
    if not path.exists():
        raise InputError(f"there is no {text}, which search:{text} names")
    return str(path)


def _services(declared: Iterable[Service], cluster: Cluster, avoid: tuple[int, ...]) -> list[tuple[Service, ...]]:
    """The services of each rank. All nodes are this machine: one whose port is fixed runs on rank 0 for all of them.

    The others keep their port on rank 0 where it is free.
    """
    fixed = _fixed(cluster)
    moving = [service for service in declared if service not in fixed]
    ports = iter(free_ports(2 * len(moving) * cluster.nodes, cluster=cluster.name, avoid=avoid))
    ranks = []
    for rank in range(cluster.nodes):
        own = [] if rank else [*fixed]
        for service in moving:
            port = next(ports) if rank or is_taken(service.port, cluster.name) else service.port
            own.append(replace(service, port=port, name=service.label, peer_port=service.peer_port and next(ports)))
        ranks.append(tuple(own))
    return ranks


def _fixed(cluster: Cluster) -> list[Service]:
    return [service for service in map(agent_service, cluster.services) if not _can_move(service)]


def _can_move(service: Service) -> bool:
    """Whether it listens at the port that it is given."""
    return re.search(r"\$(PORT\b|\{PORT\b)", service.command) is not None


def checkpoint_folder(cluster: Cluster) -> Path | None:
    """The folder that jobs save into: what the volume is on its host, which is this machine.

    None for the usual one in the cluster's own folder: none was declared, or it is on a network volume.
    """
    if not {"checkpoints", "volumes"} & set(cluster.explicit_fields()):
        return None
    for mount in cluster.mounts:
        if isinstance(mount, Volume) and mount.holds(cluster.checkpoints):
            return Path(mount.instance_path) / Path(cluster.checkpoints).relative_to(mount.path)
    return None


def free_ports(count: int, *, cluster: str, avoid: Collection[int] = (), preferred: Sequence[int] = ()) -> list[int]:
    """Distinct free ports for a cluster, none of those that the kernel gives to outgoing connections.

    Ray makes hundreds of connections before its last process listens; one of them could have taken the port.

    Args:
        count: How many.
        cluster: Its name.
        avoid: Ports that it has already.
        preferred: Ports to take before any other, in this order, if they are free.

    Raises:
        CapacityError: there are not that many.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    quiet = range(_FIRST_PORT, first) if first > _FIRST_PORT + 1000 else range(_FIRST_PORT, 65_536)
    candidates = dict.fromkeys((*preferred, *secrets.SystemRandom().sample(quiet, len(quiet))))
    free = list(islice((port for port in candidates if port not in avoid and not is_taken(port, cluster)), count))
    if len(free) < count:
        raise CapacityError(f"{count} free ports are needed, and this machine has {len(free)} of them")
    return free


def choose_dashboard_port(wanted: int | None, *, cluster: str, last: LocalState | None = None) -> int:
    """The port that was asked for, or that of last time, or Ray's own default, or any: the first that is free.

    Raises:
        InputError: the port that was asked for is not valid, or in use.
    """
    if wanted is None:
        usual = (*([last.dashboard_port] if last else []), DEFAULT_DASHBOARD_PORT)
        return free_ports(1, cluster=cluster, preferred=usual)[0]
    if not 1 <= wanted <= 65_535:
        raise InputError(f"--dashboard-port {wanted} is not a port number", hint="A number from 1024 to 65535")
    if is_taken(wanted, cluster):
        raise InputError(
            f"port {wanted} on this machine is in use, or not for this user",
            hint="Take another --dashboard-port, or leave it out for a free one",
        )
    return wanted


def is_taken(port: int, cluster: str) -> bool:
    """Whether this user cannot listen at a port, or a cluster of another name will once it has come up."""
    bound = bind(port)
    if bound is None:
        return True
    bound.close()
    for name in state.names():
        with suppress(CloudrlError):  # a state that cannot be read has no ports to be kept free
            other = state.read(name) if name != cluster else None
            if other is not None and port in other.ports and processes.of_cluster(other.id):
                return True
    return False
