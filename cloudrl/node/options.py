"""The agent's command line: `cloudrl-node.pyz run ...`, as the rendered task shows it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence, Tuple

from cloudrl.data.request import parse_request
from cloudrl.errors import InputError
from cloudrl.node.budget import BudgetLimits
from cloudrl.node.services import Service, parse_service


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
class Options:
    """What one node is asked to do. Paths are absolute; times are in seconds.

    Attributes:
        device: "gpu", or "cpu" where GPUs are slots that Ray only counts.
        gpus: GPUs a node, None to take what the provider says.
        cpus: CPUs a node that Ray may hand out, None to let Ray count.
        setup: shell commands run before anything else.
        data: data sets to prepare: names, or JSON texts (see `cloudrl.data.request`).
        models: Hugging Face ids, folders, or "tiny-qwen2".
        import_check: modules that must import in one process before the node counts as good.
        services: servers of the user's that run beside Ray.
        checkpoints: where jobs write; the volume's mount point.
        data_dir: where prepared data and made models lie; the same path on every node.
        run_dir: this node's logs and secrets.
        ray_temp_dir: Ray's own folder, removed at the end; None for Ray's default.
        key_file: the run's secret; None for the provider's.
        lease_fd: a pipe from the starter: end of file before "detach" ends the agent.
        limits: when the cluster ends by itself to save money.
    """

    device: str
    gpus: Optional[int]
    cpus: Optional[int]
    setup: Tuple[str, ...]
    data: Tuple[str, ...]
    models: Tuple[str, ...]
    import_check: Tuple[str, ...]
    services: Tuple[Service, ...]
    checkpoints: Path
    data_dir: Path
    run_dir: Path
    ray_temp_dir: Optional[Path]
    object_store_bytes: Optional[int]
    key_file: Optional[Path]
    lease_fd: Optional[int]
    ports: Ports
    join_timeout_s: float
    setup_timeout_s: float
    ray_timeout_s: float
    fetch_timeout_s: float
    lost_after_s: float
    limits: BudgetLimits


def parse_options(argv: Sequence[str]) -> Options:
    """Parse the words after `run`. Wrong ones end the process with argparse's message and exit code 2."""
    a = _parser().parse_args(argv)
    ports = Ports(
        a.agent_port, a.head_agent_port or a.agent_port, a.gcs_port, a.dashboard_port, a.client_port,
        a.dashboard_agent_port, a.node_manager_port, a.object_manager_port, a.worker_ports,
    )  # fmt: skip
    return Options(
        device=a.device,
        gpus=a.gpus_per_node,
        cpus=a.cpus_per_node,
        setup=tuple(a.setup),
        data=tuple(a.data),
        models=tuple(a.model),
        import_check=tuple(name for name in a.import_check.split(",") if name),
        services=tuple(a.service),
        checkpoints=_absolute(a.checkpoints),
        data_dir=_absolute(a.data_dir),
        run_dir=_absolute(a.run_dir),
        ray_temp_dir=_absolute(a.ray_temp_dir) if a.ray_temp_dir else None,
        object_store_bytes=a.object_store_bytes,
        key_file=_absolute(a.key_file) if a.key_file else None,
        lease_fd=a.lease_fd,
        ports=ports,
        join_timeout_s=a.join_timeout_s,
        setup_timeout_s=a.setup_timeout_s,
        ray_timeout_s=a.ray_timeout_s,
        fetch_timeout_s=a.fetch_timeout_s,
        lost_after_s=a.lost_after_s,
        limits=_limits(a.down_when_idle_s, a.max_cost, a.price_per_hour),
    )


def _limits(idle_s: Optional[float], max_cost: Optional[float], price: Optional[float]) -> BudgetLimits:
    if max_cost is not None and not price:
        _parser().error("--max-cost needs --price-per-hour, of all nodes together")
    return BudgetLimits(idle_s, max_cost, price)


def _absolute(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _data(text: str) -> str:
    try:
        parse_request(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _above_zero(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def _service(text: str) -> Service:
    try:
        return parse_service(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _port_range(text: str) -> Tuple[int, int]:
    first, last = (int(part) for part in text.split("-"))
    if first > last:
        raise ValueError(text)
    return first, last


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cloudrl-node.pyz run", allow_abbrev=False)
    add = parser.add_argument
    add("--device", choices=("gpu", "cpu"), default="gpu")
    add("--gpus-per-node", type=int)
    add("--cpus-per-node", type=int)
    add("--setup", action="append", default=[], help="a shell command; may be repeated")
    add("--data", type=_data, action="append", default=[], help="a data set; may be repeated")
    add("--model", action="append", default=[], help="a Hugging Face model; may be repeated")
    add("--import-check", default="", help="modules, separated by commas")
    add("--service", type=_service, action="append", default=[], help="PORT:COMMAND; may be repeated")
    add("--checkpoints", default="/checkpoints")
    add("--data-dir", default="~/data")
    add("--run-dir", default="~/.cloudrl/run")
    add("--ray-temp-dir")
    add("--object-store-bytes", type=int)
    add("--key-file")
    add("--lease-fd", type=int)
    add("--agent-port", type=int, default=Ports.agent)
    add("--head-agent-port", type=int)
    add("--gcs-port", type=int, default=Ports.gcs)
    add("--dashboard-port", type=int, default=Ports.dashboard)
    add("--client-port", type=int, default=Ports.client)
    add("--dashboard-agent-port", type=int, default=Ports.dashboard_agent)
    add("--node-manager-port", type=int, default=Ports.node_manager)
    add("--object-manager-port", type=int, default=Ports.object_manager)
    add("--worker-ports", type=_port_range, default=Ports.worker, metavar="FIRST-LAST")
    add("--join-timeout-s", type=float, default=900.0, help="every rank must have been heard of by then")
    add("--setup-timeout-s", type=float, default=3600.0, help="for all set-up commands of a node")
    add("--ray-timeout-s", type=float, default=600.0, help="for Ray on a node; then for its imports")
    add("--fetch-timeout-s", type=float, default=7200.0, help="for each data set and each model")
    add("--lost-after-s", type=float, default=30.0, help="silence after which a node counts as lost")
    add("--down-when-idle-s", type=_above_zero, help="end the cluster after so long without work")
    add("--max-cost", type=_above_zero, help="end the cluster when it has cost so many US dollars")
    add("--price-per-hour", type=_above_zero, help="US dollars, of all nodes together")
    return parser
