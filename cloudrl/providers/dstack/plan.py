"""A cluster as a dstack task: pure until it is priced, by one question to the server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cloudrl.errors import InputError
from cloudrl.providers.dstack import diagnostics, runs
from cloudrl.providers.dstack.server import connect
from cloudrl.providers.model import NodePaths, NoFleet, Notice, Plan, Price, Software
from cloudrl.render.agent import write_agent
from cloudrl.render.dstack import release_of, to_dstack
from cloudrl.spec import Fleet
from cloudrl.spec.names import secrets_in

if TYPE_CHECKING:
    from cloudrl.errors import CapacityError
    from cloudrl.providers.dstack.fleets import FleetState
    from cloudrl.providers.dstack.runs import RunPlan
    from cloudrl.providers.dstack.server import Server
    from cloudrl.spec import Cluster

_NO_INSTANCE_VOLUMES = ("runpod", "vastai")
"""Backends whose containers see no folder of the host (dstack.ai/docs/concepts/volumes, "Instance volumes")."""


@dataclass(frozen=True, kw_only=True)
class DstackPlan(Plan):
    """A cluster as the YAML that is sent, to the default project of the server or another.

    `quoted` is what `server` has said to it.
    """

    text: str
    project: str | None = None
    server: Server | None = field(default=None, repr=False, compare=False)
    quoted: RunPlan | None = field(default=None, repr=False, compare=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The dstack secrets that it asks for, where dstack fills them in: as variables, and to pull the image."""
        auth = self.cluster.dstack.get("registry_auth") or {}
        of_the_image = (name for each in auth.values() for name in secrets_in(each))
        return tuple(dict.fromkeys((*self.cluster.secrets, *of_the_image)))

    @property
    def fleets(self) -> tuple[str, ...]:
        """The fleets that it may run on, without their project; none where any will do."""
        wanted = self.cluster.dstack.get("fleets") or ()
        names = (each.get("name") if isinstance(each, dict) else each for each in wanted)
        return tuple(str(each).rpartition("/")[2] for each in names)

    def render(self) -> str:
        """The text that `--dry-run` prints."""
        return self.text

    def priced(self) -> DstackPlan:
        """Ask the server, once: it uploads the node agent, and answers with offers, prices and who has the name.

        Raises:
            InputError: no server is configured, it refuses the task, or what costs nothing is limited in its cost.
            NoFleet: no machine, and no fleet that is named.
            CapacityError: no fleet and no backend has such machines.
            ConnectionFailed: it does not answer.
        """
        server = connect(self.project)
        quoted = _quote(server, self)
        fleets = diagnostics.check(server, quoted, secrets=self.secrets, wanted=self.fleets)
        if not quoted.total_offers:
            raise _no_machines(server, quoted, fleets, self.cluster)
        cluster, text = self.cluster, self.text
        if self.needs_price:
            cluster = with_price(cluster, quoted)
            text = to_dstack(cluster)
            quoted = quoted.with_text(text)
            _write(server, self.name, text)
        price = Price(quoted.price, quoted.offers, quoted.total_offers, _notices(quoted, fleets))
        return replace(self, cluster=cluster, text=text, price=price, server=server, quoted=quoted)


def make_plan(cluster: Cluster, project: str | None = None) -> DstackPlan:
    """The task of a cluster. One whose cost is limited and whose price is unknown has that limit once it is priced."""
    user = (cluster.user or "root").partition(":")[0]
    home = "/root" if user in ("root", "0") else f"/home/{user}"
    secrets = "/dev/shm/cloudrl-0-RUN-ID"  # noqa: S108  as the agent does
    known = release_of(cluster) if cluster.device == "gpu" else None
    plan = DstackPlan(
        provider="dstack",
        cluster=cluster,
        node_paths=NodePaths(cluster.checkpoints, f"{home}/data", secrets),
        software=Software(verl=known.verl, rollouts=(known.rollout,)) if known else Software(),
        text="",
        project=project,
    )
    return replace(plan, text=to_dstack(cluster.replace(max_cost=None) if plan.needs_price else cluster))


def with_price(cluster: Cluster, quoted: RunPlan) -> Cluster:
    """The same with the price that its agents count with: all nodes at the cheapest offer.

    Raises:
        InputError: the machines cost nothing.
    """
    if not quoted.price:
        raise InputError(
            f"max_cost {cluster.max_cost:g}: the machines that {cluster.name} would get cost nothing an hour",
            hint="Leave it out, or say what they cost you: --set price_per_hour=12",
        )
    return cluster.replace(price_per_hour=round(quoted.price, 4))


def fleet_for(cluster: Cluster) -> Fleet:
    """A fleet of rented machines that a cluster fits on: none before it runs, none for long afterwards."""
    of_machines = (
        "backends", "regions", "availability_zones", "instance_types", "reservation", "spot_policy", "max_price",
    )  # fmt: skip
    names = ("gpu", "cpu", "memory", "disk")
    given = {name: getattr(cluster, name) for name in names if name in cluster.explicit_fields()}
    section = {name: cluster.dstack[name] for name in of_machines if name in cluster.dstack}
    return Fleet.load(
        {"name": f"{cluster.name[:35]}-fleet", "nodes": cluster.nodes, **given, "dstack": section}
    )


def _no_machines(
    server: Server, quoted: RunPlan, fleets: list[FleetState], cluster: Cluster
) -> CapacityError:
    error = diagnostics.no_machines(server, quoted, fleets)
    if cluster.dstack.get("fleets"):
        return error
    return NoFleet(error.message, hint=error.hint, fleet=fleet_for(cluster))


def _quote(server: Server, plan: DstackPlan) -> RunPlan:
    folder = server.folder(plan.name)
    write_agent(folder)
    _write(server, plan.name, plan.text)
    return runs.plan(server, plan.text, folder)


def _write(server: Server, name: str, text: str) -> None:
    """What is sent lies beside the agent, for whoever wants to see it."""
    (server.folder(name) / f"{name}.dstack.yml").write_text(text, encoding="utf-8")


def _notices(quoted: RunPlan, fleets: list[FleetState]) -> tuple[Notice, ...]:
    """What does not work on those backends, and which fleets are paid for until somebody deletes them."""
    without = sorted({each.backend for each in quoted.offers} & set(_NO_INSTANCE_VOLUMES))
    notices = [each.never_released for each in fleets]
    if without:
        text = (
            f"{', '.join(without)} cannot mount a folder of the host: checkpoints need a network volume there"
        )
        notices.insert(0, Notice(f"note: {text}"))
    return tuple(each for each in notices if each is not None)
