"""`cloudrl attach` and `detach`: the tunnel to a cluster on dstack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.cli import _output
from cloudrl.cli._write_file import ProjectOption  # noqa: TC001 - Typer reads the annotations

if TYPE_CHECKING:
    from cloudrl.transport.tunnel_daemon import TunnelState

NameArgument = Annotated[str, typer.Argument(help="The cluster, a run on dstack.")]


def attach(name: NameArgument, project: ProjectOption = None) -> None:
    """Forward a cluster's dashboard to this machine, in the background, until it ends or `cloudrl detach`.

    The tunnel is opened again whenever the connection breaks. No other command needs it: each finds its own way.
    """
    from cloudrl.errors import InputError
    from cloudrl.providers.dstack import route, runs
    from cloudrl.providers.dstack.server import connect

    server = connect(project)
    run = runs.get(server, name)
    if run.is_over:
        raise InputError(f"run {name!r} is over: {run.status}", hint=f"cloudrl up {name} --on dstack")
    _say(name, route.keep_tunnel(server.project, name))


def detach(name: NameArgument, project: ProjectOption = None) -> None:
    """Close the tunnel that `cloudrl attach` or `up` keeps open. The cluster goes on."""
    from cloudrl.providers.dstack import route
    from cloudrl.providers.dstack.server import connect

    server = connect(project)
    was_there = route.close_tunnel(server.project, name)
    _output.note(f"the tunnel to {name} is closed" if was_there else f"there was no tunnel to {name}")


def _say(name: str, tunnel: TunnelState) -> None:
    from cloudrl.spec.ports import RAY_PORT

    url = f"http://localhost:{tunnel.ports[RAY_PORT]}"
    say_other_port(name, url)
    _output.hint(f"cloudrl detach {name}")
    _output.data(url)


def say_other_port(name: str, url: str) -> None:
    """Say that the dashboard is not where one looks for it, if so."""
    from cloudrl.spec.ports import RAY_PORT

    if not url.endswith(f":{RAY_PORT}"):
        _output.note(f"port {RAY_PORT} is taken on this machine; the dashboard of {name} is at {url}")
