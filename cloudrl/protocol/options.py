"""The agent's command line, `cloudrl-node.pyz run ...`, both ways: a provider writes it, the agent reads it."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

from cloudrl.errors import InputError
from cloudrl.protocol.services import Artifact, Service, parse_artifact, parse_service

MADE_ON_NODES = ("tiny-qwen2", "tiny-adder", "tiny-searcher")
"""Models that are on no hub: one with random weights, and two after some seconds of pretraining, on sums and on
conversations with a search."""

JOIN_TIMEOUT_S = 4500.0
"""dstack 0.22.5 starts the first nodes while it still boots and pulls the others, and bounds both itself: 10 minutes
for a machine (bare metal up to 55: server/background/pipeline_tasks/common.py) and 20 for its image (runner/internal/
shim/docker.go). A head that gives up earlier has the whole run started again, and the pull with it."""


@dataclass(frozen=True)
class Ports:
    """TCP ports. Zero lets Ray choose; the local provider needs that, since all nodes share one machine.

    Attributes:
        agent: this agent's HTTP port.
        head_agent: the same on rank 0.
        gcs: Ray's control store on rank 0.
        dashboard: Ray's dashboard on rank 0, loopback only.
        client: Ray client server on rank 0.
        dashboard_agent: of every node; the head's starts the jobs. Two on one machine cannot share a number: the
            second one lives on without it, and its cluster takes no job (Ray 2.60, dashboard/agent.py).
        node_manager: raylet of every node.
        object_manager: object store of every node.
        worker: first and last port of Ray's workers. Not Ray's default (10002-19999), which contains dstack's
            10022, 10998 and 10999.
    """

    agent: int = 8266
    head_agent: int = 8266
    gcs: int = 6379
    dashboard: int = 8265
    client: int = 10001
    dashboard_agent: int = 52365
    node_manager: int = 20000
    object_manager: int = 20001
    worker: Tuple[int, int] = (20002, 29999)


@dataclass(frozen=True)
class BudgetLimits:
    """When a cluster ends by itself to save money. None is no limit.

    Attributes:
        idle_s: seconds without work.
        max_cost: US dollars, over all attempts of the run.
        price_per_hour: US dollars for all nodes together.
        max_duration_s: seconds after which the provider ends this start of the cluster.
        is_started_again: whether it starts a cluster again that has ended itself with an error before.
    """

    idle_s: Optional[float] = None
    max_cost: Optional[float] = None
    price_per_hour: Optional[float] = None
    max_duration_s: Optional[float] = None
    is_started_again: bool = False


@dataclass(frozen=True)
class AgentOptions:
    """What one node is asked to do. Times are in seconds.

    Attributes:
        device: "gpu", or "cpu" where GPUs are slots that Ray only counts.
        gpus: GPUs a node, None to take what the provider says.
        cpus: CPUs a node that Ray may hand out, None to let Ray count.
        setup: shell commands run before anything else.
        services: servers of the user's that run beside Ray.
        artifacts: files that the services need.
        import_check: modules that must import in one process before the node counts as good.
        data: data sets to prepare: names, or JSON texts (see `cloudrl.data.request`).
        models: Hugging Face ids, folders, or one of MADE_ON_NODES.
        checkpoints: where jobs write; the volume's mount point.
        data_dir: where prepared data and made models are; the same path on every node.
        run_dir: this node's logs and secrets.
        ray_temp_dir: Ray's own folder, removed at the end; None for Ray's default.
        key_file: the run's secret; None for the provider's.
        lease_fd: a pipe from the starter: end of file before "detach" ends the agent.
        job: a file with the one job that the cluster is for; it ends with it, and with its exit code.
        limits: when the cluster ends by itself to save money.
        is_one_machine: whether all nodes are on the machine of their user.
        disks_stay: whether the disks of nodes outlive the loss of the cluster.
    """

    device: str = "gpu"
    gpus: Optional[int] = None
    cpus: Optional[int] = None
    setup: Tuple[str, ...] = ()
    services: Tuple[Service, ...] = ()
    artifacts: Tuple[Artifact, ...] = ()
    import_check: Tuple[str, ...] = ()
    data: Tuple[str, ...] = ()
    models: Tuple[str, ...] = ()
    checkpoints: Path = Path("/checkpoints")
    data_dir: Path = Path("~/data")
    run_dir: Path = Path("~/.cloudrl/run")
    ray_temp_dir: Optional[Path] = None
    object_store_bytes: Optional[int] = None
    key_file: Optional[Path] = None
    lease_fd: Optional[int] = None
    job: Optional[Path] = None
    ports: Ports = field(default_factory=Ports)
    join_timeout_s: float = JOIN_TIMEOUT_S
    setup_timeout_s: float = 3600.0
    ray_timeout_s: float = 600.0
    fetch_timeout_s: float = 7200.0
    lost_after_s: float = 30.0
    limits: BudgetLimits = field(default_factory=BudgetLimits)
    is_one_machine: bool = False
    disks_stay: bool = False

    @property
    def resolved(self) -> AgentOptions:
        """The same with absolute paths of this machine and user."""
        paths = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if "Path" in str(f.type)}
        absolute = {name: path.expanduser().absolute() for name, path in paths.items() if path is not None}
        return dataclasses.replace(self, **absolute)

    def to_argv(self) -> List[str]:
        """The words after `run`, one `--name=value` an option; what has its default is left out."""
        words = []
        for option in _OPTIONS:
            value = attrgetter(option.field)(self)
            default = attrgetter(option.follows)(self) if option.follows else attrgetter(option.field)(_DEFAULTS)
            if option.always or value != default:
                values = value if option.repeated else (value,)
                words += [f"--{option.name}={option.write(value)}" for value in values]
        return words

    @classmethod
    def from_argv(cls, argv: Sequence[str], *, strict: bool = True) -> AgentOptions:
        """Read the words after `run`.

        Args:
            argv: the words.
            strict: refuse words that this release does not know; another release may have written them.

        Raises:
            InputError: a word or its value is not valid.
        """
        parser = _Parser(prog="cloudrl-node.pyz run", allow_abbrev=False, argument_default=argparse.SUPPRESS)
        for option in _OPTIONS:
            parser.add_argument(
                f"--{option.name}",
                dest=option.field,
                type=option.read,
                action="append" if option.repeated else "store",
                choices=("gpu", "cpu") if option.name == "device" else None,
                help=option.help,
            )
        values = vars(parser.parse_args(argv) if strict else parser.parse_known_args(argv)[0])
        if strict and values.get("limits.max_cost") is not None and not values.get("limits.price_per_hour"):
            raise InputError("--max-cost needs --price-per-hour, of all nodes together")
        flat: Dict[str, Any] = {"ports": {}, "limits": {}}
        followed = {follower.field: values[follower.follows] for follower in _OPTIONS if follower.follows in values}
        for name, value in {**followed, **values}.items():
            group, _, inner = name.rpartition(".")
            (flat[group] if group else flat)[inner] = tuple(value) if isinstance(value, list) else value
        return cls(**{**flat, "ports": Ports(**flat["ports"]), "limits": BudgetLimits(**flat["limits"])})


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def _above_zero(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def _yes(text: str) -> bool:
    return {"yes": True, "no": False}[text]


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def _port_range(text: str) -> Tuple[int, int]:
    first, last = (int(part) for part in text.split("-"))
    if first > last:
        raise ValueError(text)
    return first, last


def _modules(text: str) -> Tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _number(value: float) -> str:
    """As people write it, `49.2` or `1800`."""
    return text if float(text := f"{value:.10g}") == value else repr(value)


class _Option(NamedTuple):
    """One option: its name on the command line, its field, and how its value is read and written.

    One that is not given has the value of the field that it `follows`, if any.
    """

    name: str
    field: str
    read: Callable[[str], Any] = str
    write: Callable[[Any], str] = str
    help: Optional[str] = None
    repeated: bool = False
    always: bool = False
    follows: str = ""


_OPTIONS = (
    _Option("device", "device", always=True),
    _Option("gpus-per-node", "gpus", int),
    _Option("cpus-per-node", "cpus", int),
    _Option("setup", "setup", help="a shell command; may be repeated", repeated=True),
    _Option("artifact", "artifacts", parse_artifact, help="name and command as JSON; may be repeated", repeated=True),
    _Option("service", "services", parse_service, help="PORT:COMMAND, or JSON; may be repeated", repeated=True),
    _Option("import-check", "import_check", _modules, ",".join, "modules, separated by commas"),
    _Option("data", "data", help="a data set; may be repeated", repeated=True),
    _Option("model", "models", help="a Hugging Face model; may be repeated", repeated=True),
    _Option("checkpoints", "checkpoints", Path, always=True),
    _Option("data-dir", "data_dir", Path),
    _Option("run-dir", "run_dir", Path),
    _Option("ray-temp-dir", "ray_temp_dir", Path),
    _Option("object-store-bytes", "object_store_bytes", int),
    _Option("key-file", "key_file", Path),
    _Option("lease-fd", "lease_fd", int),
    _Option("job", "job", Path),
    _Option("agent-port", "ports.agent", int),
    _Option("head-agent-port", "ports.head_agent", int, follows="ports.agent"),
    _Option("gcs-port", "ports.gcs", int),
    _Option("dashboard-port", "ports.dashboard", int),
    _Option("client-port", "ports.client", int),
    _Option("dashboard-agent-port", "ports.dashboard_agent", int),
    _Option("node-manager-port", "ports.node_manager", int),
    _Option("object-manager-port", "ports.object_manager", int),
    _Option("worker-ports", "ports.worker", _port_range, "{0[0]}-{0[1]}".format, "FIRST-LAST"),
    _Option("join-timeout-s", "join_timeout_s", float, _number, "every rank must have been heard of by then"),
    _Option("setup-timeout-s", "setup_timeout_s", float, _number, "for all set-up commands of a node"),
    _Option("ray-timeout-s", "ray_timeout_s", float, _number, "for Ray on a node; then for its imports"),
    _Option("fetch-timeout-s", "fetch_timeout_s", float, _number, "for each data set, model and artifact"),
    _Option("lost-after-s", "lost_after_s", float, _number, "silence after which a node counts as lost"),
    _Option("down-when-idle-s", "limits.idle_s", _above_zero, _number, "end after so long without work"),
    _Option("max-cost", "limits.max_cost", _above_zero, _number, "end when it has cost so many US dollars"),
    _Option("price-per-hour", "limits.price_per_hour", _above_zero, _number, "US dollars, of all nodes"),
    _Option(
        "max-duration-s", "limits.max_duration_s", _above_zero, _number, "after which the provider ends this start"
    ),
    _Option("started-again", "limits.is_started_again", _yes, _yes_or_no, "yes: after an error, by the provider"),
    _Option("one-machine", "is_one_machine", _yes, _yes_or_no, "yes: all nodes are on one machine"),
    _Option("disks-stay", "disks_stay", _yes, _yes_or_no, "yes: they outlive the cluster"),
)
"""In the order in which they are written."""
_DEFAULTS = AgentOptions()
