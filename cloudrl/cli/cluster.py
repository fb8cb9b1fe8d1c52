"""`cloudrl status`, `down` and `env`: a cluster that is there."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.cli import _output, _price
from cloudrl.cli._target import (
    AddressOption,
    ClusterOption,
    all_clusters,
    connect,
    one_cluster,
    running_clusters,
)
from cloudrl.errors import ClusterFailed, InputError
from cloudrl.providers.registry import ClusterRef, find, locate, names_in_use, provider

if TYPE_CHECKING:
    from cloudrl.providers.model import Provider, Status

NameArgument = Annotated[str | None, typer.Argument(help="The cluster; not needed when there is one.")]


def status(
    name: NameArgument = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Redraw until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Show clusters, or the nodes and phases of one. Exit code 4 when it has failed."""
    known = all_clusters() if name is None else find(name).clusters if "/" not in name else ()
    if (name is None and len(known) != 1) or len(known) > 1:
        _list([provider(each.provider).status(each.name) for each in known], as_json=as_json)
        if name is not None:
            _output.hint(f"One of them: cloudrl status {names_in_use(known)[-1]}")
        return
    ref = locate(name) if name is not None else ClusterRef(known[0].provider, known[0].name)
    where = provider(ref.provider)
    if watch:
        look = _watch(where, ref.name)
    else:
        look = where.status(ref.name)
        _output.as_json(asdict(look)) if as_json else _show(look)
    if look.has_failed:
        raise ClusterFailed(
            f"cluster {look.name!r} failed: {look.reason}", hint=f"Its logs: {look.logs_command}"
        )


def down(
    name: NameArgument = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """End a cluster and everything that runs on it. Logs stay; so do checkpoints, unless it says otherwise and asks.

    Without a name it is the only one of yours; another user's is ended by its name, after a question.
    """
    from cloudrl.cli import _teardown
    from cloudrl.cli._interrupts import ending

    chosen = one_cluster(name)
    ref = locate(chosen)
    where = provider(ref.provider)
    with ending(where, ref.name):
        impact = _teardown.assess(where, ref.name)
    with ending(where, ref.name, impact.look.price_per_hour):
        _teardown.ask(impact, yes=yes)
        _teardown.end(where, impact)
    if impact.look.is_over and "/" not in chosen:
        _say_who_is_silent(chosen)


def _say_who_is_silent(name: str) -> None:
    """Say that the cluster that was over may not be the one that was meant."""
    for each in find(name).silent:
        ref = ClusterRef(each.provider, name)
        _output.note(f"{each.error.message}; if there is a cluster {ref}, it goes on")
        _output.hint(f"When it answers: cloudrl down {ref}")


def env(cluster: ClusterOption = None, address: AddressOption = None) -> None:
    """Print what a raw `ray job submit` needs: eval "$(cloudrl env)". Contains the cluster's token.

    The tunnel to a cluster on dstack stays open in the background, as after `cloudrl attach`.
    """
    if cluster is None and address is None and not running_clusters():
        raise InputError("there is no cluster", hint="Name one: cloudrl env --address http://localhost:8265")
    for key, value in connect(cluster, address, keep=True).env.items():
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
    from cloudrl.cli._status_table import describe_attempt, node_table

    if not look.nodes:
        _output.data(f"{look.name} on {look.provider}: {look.phase}")
    elif _output.is_interactive():
        _output.console(stderr=False).print(node_table(look))
    else:
        rows = [(str(n["rank"]), str(n["ip"]), str(n["phase"]), str(n["detail"])) for n in look.nodes]
        _output.table(("rank", "address", "phase", "detail"), rows)
    for attempt in look.previous_attempts:
        _output.note(describe_attempt(attempt))
    for line in _price.describe(look):
        _output.note(line)
    if look.is_ready:
        dashboard = look.dashboard_url or f"behind cloudrl attach {look.name}"
        _output.note(f"dashboard {dashboard}, checkpoints {look.checkpoint_dir}")


def _watch(where: Provider, name: str) -> Status:
    """Redraw until the cluster is down or Ctrl-C; returns the last look."""
    from cloudrl.cli._status_table import watching

    with watching() as on_status, closing(where.watch(name)) as looks:
        look = next(looks)
        try:
            on_status(look)
            for look in looks:
                on_status(look)
        except KeyboardInterrupt:
            return look
        return look
