"""`cloudrl status`, `down` and `env`: a cluster that is there."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.cli import _output, _price
from cloudrl.cli._target import (
    AddressOption,
    ClusterOption,
    connect,
    home_of,
    known_clusters,
    one_cluster,
    provider_named,
    running_clusters,
)
from cloudrl.errors import ClusterFailed, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudrl.connection import Connection
    from cloudrl.providers import Provider
    from cloudrl.providers.model import Keeping, Status

NameArgument = Annotated[str | None, typer.Argument(help="The cluster; not needed when there is one.")]


def status(
    name: NameArgument = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Redraw until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Show clusters, or the nodes and phases of one. Exit code 4 when it has failed."""
    known = known_clusters()
    if name is None and len(known) != 1:
        _list([provider_named(home).status(each) for each, home in known.items()], as_json=as_json)
        return
    chosen = one_cluster(name)
    home = home_of(chosen)
    if watch:
        look = _watch(home, chosen)
    else:
        look = home.status(chosen)
        _output.as_json(asdict(look)) if as_json else _show(look)
    if look.has_failed:
        raise ClusterFailed(
            f"cluster {look.name!r} failed: {look.reason}", hint=f"Its logs: {home.logs(chosen)}"
        )


def down(
    name: NameArgument = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """End a cluster and everything that runs on it. Logs stay; so do checkpoints, unless it says otherwise and asks."""
    from cloudrl.cli import _at_risk

    chosen = one_cluster(name)
    home = home_of(chosen)
    look = home.status(chosen)
    connection = _reach(home, look)
    running = _running_jobs(connection)
    if running and not _output.confirm(
        f"Jobs are running on {chosen}: {', '.join(running)}. End them?", yes=yes
    ):
        raise InputError(f"{chosen} is left as it is")
    keeping, lines = _at_risk.look(home, look, connection)
    if keeping is not None and keeping.lost:
        _at_risk.show(keeping, lines)
        if not _output.confirm(f"End {chosen}?", yes=yes, unattended=False):
            raise InputError(f"{chosen} is left as it is")
    _end(home, look, keeping, lines)


def end(home: Provider, name: str) -> None:
    """End a cluster without a question; say what stays, what is lost, and what goes on to cost money."""
    from cloudrl.cli import _at_risk

    look = home.status(name)
    keeping, lines = _at_risk.look(home, look, _reach(home, look))
    if keeping is not None and keeping.lost:
        _at_risk.show(keeping, lines)
    _end(home, look, keeping, lines)


def _end(home: Provider, look: Status, keeping: Keeping | None, lines: Sequence[str]) -> None:
    was_running = home.down(look.name)
    what = "is down" if was_running else "was not running"
    _output.note(f"{look.name} {what}; {home.what_stays(look.name)}")
    if keeping is not None and not keeping.lost and look.provider != "local":
        _output.note(f"checkpoints stay {keeping.where}")
    if look.provider == "dstack":
        _after_dstack(look.name, keeping, lines)


def _after_dstack(name: str, keeping: Keeping | None, lines: Sequence[str]) -> None:
    """Note what lies on its machines now, and name its fleet if that never gives them back."""
    from cloudrl.providers.dstack import fleets, left, runs
    from cloudrl.providers.dstack.server import connect

    server = connect()
    run = runs.get(server, name)
    if keeping is not None:
        hosts = [node.latest.hostname for node in run.nodes]
        left.remember(server.project, left.Left(name, keeping.fleet, hosts, keeping.volumes, lines))
    _price.warn_of(each for each in fleets.list_all(server) if each.name == run.fleet)


def env(cluster: ClusterOption = None, address: AddressOption = None) -> None:
    """Print what a raw `ray job submit` needs: eval "$(cloudrl env)". Contains the cluster's token."""
    if cluster is None and address is None and not running_clusters():
        raise InputError("there is no cluster", hint="Name one: cloudrl env --address http://localhost:8265")
    for key, value in connect(cluster, address).env.items():
        _output.data(f"export {key}={shlex.quote(value)}")


def _list(looks: list[Status], *, as_json: bool) -> None:
    if as_json:
        _output.as_json([asdict(look) for look in looks])
    elif looks:
        rows = [
            (
                each.name, each.provider, each.phase, str(each.nodes_wanted), _price.so_far(each),
                each.dashboard_url or "",
            )
            for each in looks
        ]  # fmt: skip
        _output.table(("name", "on", "phase", "nodes", "cost so far", "dashboard"), rows)
    else:
        _output.note("There is no cluster.")
        _output.hint("cloudrl up --on local --nodes 2")


def _show(look: Status) -> None:
    from cloudrl.cli._live import describe_attempt, node_table

    if not look.nodes:
        _output.data(f"{look.name} on {look.provider}: {look.phase}")
    elif _output.is_interactive():
        _output.console(stderr=False).print(node_table(look))
    else:
        rows = [(str(n["rank"]), str(n["ip"]), str(n["phase"]), str(n["detail"])) for n in look.nodes]
        _output.table(("rank", "address", "phase", "detail"), rows)
    for attempt in look.earlier:
        _output.note(describe_attempt(attempt))
    for line in _price.describe(look):
        _output.note(line)
    if look.is_ready:
        _output.note(f"dashboard {look.dashboard_url}, checkpoints {look.checkpoint_dir}")


def _watch(home: Provider, name: str) -> Status:
    """Redraw until the cluster is down or Ctrl-C; returns the last look."""
    import time

    from cloudrl.cli._live import watching

    with watching() as on_status:
        look = home.status(name)
        try:
            while look.phase not in ("down", "failed"):
                on_status(look)
                time.sleep(0.5)
                look = home.status(name)
        except KeyboardInterrupt:
            return look
        on_status(look)
        return look


def _reach(home: Provider, look: Status) -> Connection | None:
    """The way into a cluster that is up; None where there is none, and where it has just gone."""
    from cloudrl.errors import ConnectionFailed

    try:
        return home.attach(look.name) if look.is_ready else None
    except (InputError, ConnectionFailed):
        return None


def _running_jobs(connection: Connection | None) -> list[str]:
    from cloudrl.errors import ConnectionFailed
    from cloudrl.jobs import list_jobs

    if connection is None:
        return []
    try:
        jobs = list_jobs(connection)
    except (InputError, ConnectionFailed):
        return []
    return [job.submission_id for job in jobs if not job.status.is_terminal]
