"""A cluster as a dstack task: pure until it is priced, by one question to the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cloudrl.errors import CapacityError, InputError
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.folders import secrets_folder
from cloudrl.protocol.options import BudgetLimits
from cloudrl.protocol.progress import Notice
from cloudrl.providers.dstack import runs
from cloudrl.providers.dstack.backends import SEE_CLOUDS, cannot_mount, single_node_only
from cloudrl.providers.dstack.fleet import IDLE_AFTER_RUN, Fleet, NoFleet
from cloudrl.providers.dstack.machine_states import FleetState
from cloudrl.providers.dstack.machines import DstackFleets, offers_of, project_backends
from cloudrl.providers.dstack.mismatches import describe
from cloudrl.providers.dstack.runs import RunState
from cloudrl.providers.dstack.server import Server, connect, parse
from cloudrl.providers.dstack.task import release_of, task_text, with_duration
from cloudrl.providers.model import Offer, Plan, Price
from cloudrl.providers.planned import planned_facts
from cloudrl.providers.state_folder import make_state_folder
from cloudrl.render.agent_options import HONOURED, honoured_for_image
from cloudrl.render.hub_cache import home_of
from cloudrl.render.search import write_files
from cloudrl.spec import Cluster
from cloudrl.spec.cluster import disk_for
from cloudrl.spec.names import secrets_in
from cloudrl.spec.sizes import least_bytes
from cloudrl.spec.volume import Volume
from cloudrl.units import size_text
from cloudrl.verl import keys
from cloudrl.verl.releases import Release

_HONOURED = (
    *HONOURED, "image", "user", "working_dir", "ports", "cpu", "memory", "disk", "shm_size", "checkpoints", "volumes",
    "dstack",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DstackPlan(Plan):
    """A cluster as the YAML that is sent.

    Attributes:
        release: of verl, whose image it runs in; None for another image.
        text: the YAML of the task.
        server: the one that was asked; None before `priced`.
        answer: what it has said to the task (dstack 0.22.5, core/models/runs.py: RunPlan), which is what `up` applies.
    """

    release: Release | None = field(repr=False)
    text: str
    server: Server | None = field(default=None, repr=False, compare=False)
    answer: Any = field(default=None, repr=False, compare=False)

    place = "on dstack"

    @property
    def honoured(self) -> tuple[str, ...]:
        """See `Plan`."""
        return (*_HONOURED, *honoured_for_image(self.cluster, self.release))

    @property
    def has_own_disks(self) -> bool:
        """See `Plan`: without `volumes`, checkpoints are in a folder of each machine."""
        return self.cluster.volumes is None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The dstack secrets that it asks for, where dstack fills them in: as variables, and to pull the image."""
        auth = self.cluster.dstack.get("registry_auth") or {}
        of_the_image = (name for value in auth.values() for name in secrets_in(value))
        return tuple(dict.fromkeys((*self.cluster.secrets, *of_the_image)))

    @property
    def fleets(self) -> tuple[str, ...]:
        """The fleets that it may run on, without their project; none where any will do."""
        wanted = self.cluster.dstack.get("fleets") or ()
        names = (fleet.get("name") if isinstance(fleet, dict) else fleet for fleet in wanted)
        return tuple(str(name).rpartition("/")[2] for name in names)

    @property
    def current(self) -> RunState | None:
        """The run that had the name when the server was asked, over or not."""
        run = self.answer.current_resource if self.answer is not None else None
        return runs.state_of(run) if run is not None else None

    def render(self) -> str:
        """The text that `--dry-run` prints."""
        return self.text

    def priced(self) -> DstackPlan:
        """Ask the server, once: it uploads the node agent, and answers with offers, prices and who has the name.

        Raises:
            InputError: no server is configured, it refuses the task, a run of its name is going on, it lacks a secret
                that the task names, or what costs nothing is limited in its cost.
            NoFleet: no machine, and no fleet that is named.
            CapacityError: no fleet and no backend has such machines.
            ConnectionFailed: it does not answer.
        """
        server = connect()
        make_state_folder(server.folder(self.name))
        write_files(self.cluster, server.folder(self.name))
        plan = replace(self, server=server, answer=_ask(server, self.name, self.text))
        _check_name(server, plan)
        _check_secrets(server, plan)
        fleets = [fleet for fleet in DstackFleets(server).list() if not self.fleets or fleet.name in self.fleets]
        job = plan.answer.job_plans[0]
        offers = offers_of(job.offers)
        if not offers or not _has_room(self.cluster.nodes, job.offers, fleets):
            raise _no_machines(server, plan, fleets)
        per_hour = self.cluster.nodes * offers[0].price
        notices = (*_notices(offers, fleets), *_small_disks(self.cluster, job.offers))
        price = Price(per_hour, offers, job.total_offers, notices)
        cluster = with_time_limit(self.cluster, job.job_spec.max_duration)
        cluster = with_price(cluster, per_hour) if self.needs_price else cluster
        if cluster == self.cluster:
            return replace(plan, price=price)
        text = task_text(cluster, self.release)
        _write(server, self.name, text)
        plan.answer.run_spec.configuration = parse(text)  # no offer depends on what differs
        return replace(plan, price=price, cluster=cluster, text=text, facts=_with_end(self.facts, cluster))


def make_plan(cluster: Cluster) -> DstackPlan:
    """The task of a cluster. One whose cost is limited and whose price is unknown has that limit once it is priced."""
    release = release_of(cluster)
    facts = planned_facts(
        cluster,
        "dstack",
        checkpoint_dir=cluster.checkpoints,
        data_dir=f"{home_of(cluster)}/data",
        secrets_dir=secrets_folder(0, "RUN-ID"),
        release=release if cluster.device == "gpu" else None,
    )
    plan = DstackPlan(cluster=cluster, facts=_with_end(facts, cluster), release=release, text="")
    known_in_full = cluster.replace(max_cost=None) if plan.needs_price else cluster
    return replace(plan, text=task_text(known_in_full, release))


def _with_end(facts: ClusterFacts, cluster: Cluster) -> ClusterFacts:
    limits = with_duration(BudgetLimits(), cluster.dstack)
    return replace(facts, max_duration_s=limits.max_duration_s, is_started_again=limits.is_started_again)


def with_time_limit(cluster: Cluster, max_duration_s: int | None) -> Cluster:
    """The same with the `max_duration` of dstack's plan, where that is another one: its agents have to know it.

    A server may set one by its policies (dstack 0.22.5, server/services/runs: apply_plugin_policies).

    Args:
        cluster: as it is declared.
        max_duration_s: of the job in the plan; None without such a limit.
    """
    known_s = with_duration(BudgetLimits(), cluster.dstack).max_duration_s
    if max_duration_s is None or max_duration_s <= 0 or known_s == max_duration_s:
        return cluster
    return cluster.replace(dstack={**cluster.dstack, "max_duration": f"{max_duration_s}s"})


def with_price(cluster: Cluster, per_hour: float) -> Cluster:
    """The same with the price that its agents count with: all nodes at the cheapest offer.

    Raises:
        InputError: the machines cost nothing.
    """
    if not per_hour:
        raise InputError(
            f"max_cost {cluster.max_cost:g}: the machines that {cluster.name} would get cost nothing an hour",
            hint="Leave it out, or say what they cost you: --set price_per_hour=12",
        )
    return cluster.replace(price_per_hour=round(per_hour, 4))


def fleet_for(cluster: Cluster) -> Fleet:
    """A fleet of rented machines that a cluster fits on: none before it runs, none for long afterwards.

    It has room for one more: a lost machine counts for 20 minutes, and its replacement would have to wait for that
    long (server/background/pipeline_tasks/instances/common.py: TERMINATION_DEADLINE_OFFSET).
    """
    of_machines = (
        "backends", "regions", "availability_zones", "instance_types", "reservation", "spot_policy", "max_price",
    )  # fmt: skip
    names = ("gpu", "cpu", "memory", "disk")
    declared = {name: getattr(cluster, name) for name in names if name in cluster.explicit_fields()}
    if cluster.disk is None and (disk := disk_for(cluster)) is not None:
        declared["disk"] = disk
    section = {name: cluster.dstack[name] for name in of_machines if name in cluster.dstack}
    fields = {
        "name": f"{cluster.name[:35]}-fleet", "nodes": f"0..{cluster.nodes + 1}", **declared,
        "idle_duration": IDLE_AFTER_RUN, "dstack": section,
    }  # fmt: skip
    if cluster.nodes == 1:
        fields["placement"] = "any"  # `cluster` would leave out backends without a network between machines
    return Fleet.load(fields)


def _ask(server: Server, name: str, text: str) -> Any:
    """What the server says to a task; the `files` beside it are uploaded, nothing is started."""
    from dstack.api import Client

    client = Client(api_client=server.api, project_name=server.project)
    path = _write(server, name, text)
    return server.call(client.runs.get_run_plan, parse(text), configuration_path=path)


def _write(server: Server, name: str, text: str) -> str:
    """What is sent is beside the agent, for whoever wants to see it. Returns its path."""
    path = server.folder(name) / f"{name}.dstack.yml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _check_name(server: Server, plan: DstackPlan) -> None:
    """Refuse a name that is taken. The way on is not to attach to the cluster of somebody else, nor to end it."""
    current, name = plan.current, plan.name
    if current is None or current.is_over:
        return
    if current.user != runs.present_user(server):
        message = f"user {current.user!r} has a run {name!r} in project {server.project!r}"
        hint = f"Choose another name: --cluster {name}-2"
    elif current.status == "terminating":
        message = f"a run {name!r} is still ending"
        hint = f"Try again when it is gone: cloudrl status {name}"
    else:
        message = f"a run {name!r} already exists: {current.status}"
        hint = f"cloudrl attach {name}\ncloudrl down {name}"
    raise InputError(message, hint=hint)


def _check_secrets(server: Server, plan: DstackPlan) -> None:
    if not plan.secrets:
        return
    there = {secret.name for secret in server.call(server.api.secrets.list, server.project)}
    missing = [name for name in plan.secrets if name not in there]
    if missing:
        raise InputError(
            f"{plan.name}.dstack.yml uses dstack secrets that project {server.project!r} does not have: "
            f"{', '.join(missing)}",
            hint="\n".join(f"dstack secret set {name} VALUE" for name in missing),
        )


def _no_machines(server: Server, plan: DstackPlan, fleets: Sequence[FleetState]) -> CapacityError:
    """That no backend has such machines, and which of the fleets that the task may run on nearly would."""
    cluster = plan.cluster
    title, names = f"cluster {cluster.name!r}", ", ".join(state.name for state in fleets)
    apart = [state.name for state in fleets if not state.is_cluster] if cluster.nodes > 1 else []
    if not fleets:
        message = f"{title}: project {server.project!r} has no fleet that it may run on"
        hint = "cloudrl fleet create --gpu 80GB..:8 --nodes 0..3"
        for reason, remedy in _unable(cluster, fleets, project_backends(server)):
            message, hint = f"{message}; {reason}", f"{remedy}\n{hint}"
    elif apart:
        message = (
            f"{title} has {cluster.nodes} nodes, and dstack runs those only on fleets with placement: cluster, "
            f"which {', '.join(apart)} {'does' if len(apart) == 1 else 'do'} not have"
        )
        hint = (
            f"Delete it: cloudrl fleet delete {apart[0]}\n"
            "Make one whose machines are close to each other: cloudrl fleet create --gpu 80GB..:8 --nodes 0..3"
        )
    else:
        message = f"{title}: no fleet has or can get such a machine (there is: {names})"
        hint = "What they have: cloudrl fleet list\nAnother one: cloudrl fleet create --gpu 80GB..:8 --nodes 0..3"
        task = plan.answer.run_spec.configuration
        machines = [instance for fleet in fleets for instance in fleet.present]
        seen, options = describe(task, machines, nodes=cluster.nodes)
        if seen:
            message = f"{message}: {seen}"
            hint = "\n".join((*options, hint))
        unable = _unable(cluster, fleets, project_backends(server))
        reasons = (*_other_prices(cluster, fleets), *unable, *_full(cluster, fleets))
        for reason, remedy in reasons:
            message, hint = f"{message}; {reason}", f"{remedy}\n{hint}"
    if plan.fleets:
        return CapacityError(message, hint=hint)
    fleet = fleet_for(cluster)
    on_it = cluster.replace(dstack={**cluster.dstack, "fleets": [fleet.name]})
    own = tuple(state.name for state in fleets if state.is_own)
    return NoFleet(message, hint=hint, fleet=fleet, cluster=on_it, own_fleets=own)


def _other_prices(cluster: Cluster, fleets: Sequence[FleetState]) -> Iterator[tuple[str, str]]:
    """Fleets that rent, or have rented, spot machines for a cluster that asks for on-demand ones, or the reverse.

    Neither side's `auto` is enough: a machine that is there is one or the other, and takes a place in its fleet.
    """
    asked = cluster.dstack.get("spot_policy") or "on-demand"  # server/services/jobs/configurators/task.py
    for fleet in fleets:
        kinds = {"spot" if instance.spot else "on-demand" for instance in fleet.present}
        has = fleet.spot_policy if fleet.spot_policy != "auto" else next(iter(kinds)) if len(kinds) == 1 else "auto"
        if not fleet.is_ssh and "auto" not in (asked, has) and asked != has:
            yield (
                f"fleet {fleet.name} has {has} machines and the cluster asks for {asked} ones",
                "Either will do: --set dstack.spot_policy=auto",
            )


def _has_room(nodes: int, offers: Sequence[Any], fleets: Sequence[FleetState]) -> bool:
    """Whether the fleet that the offers are of has as many such machines, idle or busy, or may rent the rest.

    dstack itself looks at one node: it would start the first of them, and try for the others until `retry` is over.
    """
    there = sum(offer.availability.value in ("idle", "busy") for offer in offers)
    return not fleets or there + max(fleet.room for fleet in fleets) >= nodes


def _small_disks(cluster: Cluster, offers: Sequence[Any]) -> Iterator[Notice]:
    """That a machine that may be taken has a smaller disk than the cluster's models and their saves need."""
    wanted = disk_for(cluster) if cluster.disk is None else None
    disks = [disk.size_mib << 20 for offer in offers if (disk := offer.instance.resources.disk) and disk.size_mib]
    if wanted is None or not disks or min(disks) >= least_bytes(wanted):
        return
    yield Notice(
        f"note: machines with {size_text(min(disks))} of disk may be taken, and {cluster.name} needs about "
        f"{size_text(least_bytes(wanted))} for image, models and eight checkpoints",
        f"Only larger ones: --set disk={wanted}\nOr keep fewer checkpoints: {keys.CHECKPOINTS_KEPT}=1",
    )


def _full(cluster: Cluster, fleets: Sequence[FleetState]) -> Iterator[tuple[str, str]]:
    """Fleets that may not rent as many machines as the cluster has nodes; those that are there may not fit it."""
    for fleet in fleets:
        if not fleet.is_ssh and fleet.room < cluster.nodes:
            yield (
                f"fleet {fleet.name} has {len(fleet.present)} machines of at most {fleet.most}",
                f"If they are idle and do not fit, by their disks for example: cloudrl fleet delete {fleet.name}",
            )


def _unable(cluster: Cluster, fleets: Sequence[FleetState], of_project: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What the backends that may be rented from cannot do for a cluster: several nodes, or a folder of their hosts."""
    if any(fleet.is_ssh for fleet in fleets):
        return
    named = {name for fleet in fleets for name in (*fleet.backends, *(each.backend for each in fleet.present))}
    open_fleets = not fleets or any(not fleet.backends for fleet in fleets)
    used = sorted({*named, *(of_project if open_fleets else ())})
    alone = single_node_only(used) if cluster.nodes > 1 else ()
    if used and len(alone) == len(used):
        yield f"{', '.join(used)} runs clusters of one node only", f"{SEE_CLOUDS}\nOn one node: --nodes 1"
        return
    usable = [name for name in used if name not in alone]
    mounts = [mount for mount in cluster.mounts if isinstance(mount, Volume) and not mount.optional]
    if mounts and usable and len(cannot_mount(usable)) == len(usable):
        reason = f"{', '.join(usable)} cannot mount a folder of the host, as {mounts[0].path} asks for"
        yield reason, f"Checkpoints on a network volume: --volume NAME:{mounts[0].path}\n{SEE_CLOUDS}"


def _notices(offers: Sequence[Offer], fleets: Sequence[FleetState]) -> tuple[Notice, ...]:
    """What does not work on those backends, and which fleets are paid for until somebody deletes them."""
    paid = tuple(fleet.never_released for fleet in fleets if fleet.never_released is not None)
    without = ", ".join(sorted(cannot_mount({offer.backend for offer in offers})))
    if not without:
        return paid
    text = f"note: {without} cannot mount a folder of the host: checkpoints need a network volume there"
    return (Notice(text), *paid)
