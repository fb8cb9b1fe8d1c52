"""`cloudrl status`, `down`, `env`, `attach` and `detach`: a cluster that is there."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import (
    AddressOption,
    ClusterArgument,
    ClusterOption,
    JsonOption,
    YesOption,
    one_name,
)

if TYPE_CHECKING:
    from cloudrl.providers.model import Status


def status(
    name: ClusterArgument = None,
    cluster: ClusterOption = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Redraw until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show clusters, or the nodes and phases of one. Exit code 4 when it has failed."""
    from cloudrl.cli._terminal import Terminal
    from cloudrl.providers.registry import ClusterRef
    from cloudrl.sdk.find import look
    from cloudrl.sdk.running import raise_for_status, watch_cluster

    chosen = one_name(name, cluster)
    with Terminal() as terminal:
        looks = look(chosen, on_progress=terminal)
        if len(looks) == 1 and watch:
            looks = [watch_cluster(ClusterRef(looks[0].provider, looks[0].name), on_progress=terminal)]
    if len(looks) != 1:
        _list(looks, as_json=as_json)
        if chosen is not None:
            _output.hint(f"One of them: cloudrl status {looks[0].provider}/{chosen}")
        return
    if as_json:
        _output.as_json(asdict(looks[0]))
    elif not watch:
        _show(looks[0])
    raise_for_status(looks[0])


def down(name: ClusterArgument = None, cluster: ClusterOption = None, *, yes: YesOption = False) -> None:
    """End a cluster and everything that runs on it. Logs stay; so do checkpoints, unless it says otherwise and asks.

    Without a name it is the only one of yours; another user's is ended by its name, after a question.
    """
    from cloudrl.cli._terminal import Terminal
    from cloudrl.sdk.find import only_cluster
    from cloudrl.sdk.teardown import down as end

    with Terminal(yes=yes) as terminal:
        end(only_cluster(one_name(name, cluster)), confirm=terminal.confirm, on_progress=terminal)


def env(
    name: ClusterArgument = None,
    cluster: ClusterOption = None,
    address: AddressOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Print what a raw `ray job submit` needs: eval "$(cloudrl env)". Contains the cluster's token.

    The tunnel to a cluster on dstack stays open in the background, as after `cloudrl attach`.
    """
    from cloudrl.sdk.find import find

    running = find(one_name(name, cluster), address, keep_open=True, plain=False)
    variables = running.connection.env
    text = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in variables.items())
    _output.result(text, variables, is_json=as_json)


def attach(
    name: ClusterArgument = None,
    cluster: ClusterOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Forward a cluster's dashboard to this machine, in the background, until it ends or `cloudrl detach`.

    The tunnel is opened again whenever the connection breaks. No other command needs it: each finds its own way.
    """
    from cloudrl.cli._terminal import Terminal
    from cloudrl.sdk.find import only_cluster
    from cloudrl.sdk.running import attach as connect

    chosen = only_cluster(one_name(name, cluster))
    with Terminal() as terminal:
        running = connect(chosen, keep_open=True, on_progress=terminal)
    url = running.connection.ray_url.replace("127.0.0.1", "localhost")
    _output.hint(f"cloudrl detach {chosen}")
    _output.result(url, {"name": chosen, "dashboard_url": url}, is_json=as_json)


def detach(name: ClusterArgument = None, cluster: ClusterOption = None) -> None:
    """Close the tunnel that `cloudrl attach` or `up` keeps open. The cluster goes on."""
    from cloudrl.sdk.find import only_cluster
    from cloudrl.sdk.running import detach as close

    chosen = only_cluster(one_name(name, cluster))
    was_there = close(chosen)
    _output.note(f"the tunnel to {chosen} is closed" if was_there else f"there was no tunnel to {chosen}")


def _list(looks: list[Status], *, as_json: bool) -> None:
    from cloudrl.sdk.amounts import money

    if as_json:
        _output.as_json([asdict(each) for each in looks])
    elif looks:
        rows = [
            (
                each.name, each.provider, str(each.phase), str(each.nodes_wanted),
                money(each.cost) if each.cost else "", each.dashboard_url or "",
            )
            for each in looks
        ]  # fmt: skip
        _output.table(("name", "on", "phase", "nodes", "cost so far", "dashboard"), rows)
    else:
        _output.note("There is no cluster.")
        _output.hint("cloudrl up --on local --nodes 2")


def _show(look: Status) -> None:
    from cloudrl.cli._status_table import HEADS, cells_of, describe_attempt, node_table
    from cloudrl.sdk.costs import describe

    if not look.nodes:
        _output.data(f"{look.name} on {look.provider}: {look.phase}")
    elif _output.is_interactive():
        _output.console(stderr=False).print(node_table(look))
    else:
        _output.table(HEADS, [cells_of(each) for each in look.nodes])
    for line in [*map(describe_attempt, look.previous_attempts), *describe(look)]:
        _output.note(line)
    if look.is_ready:
        dashboard = look.dashboard_url or f"behind cloudrl attach {look.name}"
        _output.note(f"dashboard {dashboard}, checkpoints {look.checkpoint_dir}")
