"""`cloudrl attach` and `detach`: the tunnel to a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from cloudrl.cli import _output

NameArgument = Annotated[str, typer.Argument(help="The cluster.")]


def attach(name: NameArgument) -> None:
    """Forward a cluster's dashboard to this machine, in the background, until it ends or `cloudrl detach`.

    The tunnel is opened again whenever the connection breaks. No other command needs it: each finds its own way.
    """
    from cloudrl.providers.registry import locate, provider

    ref = locate(name)
    url = provider(ref.provider).attach(ref.name, keep_open=True).ray_url.replace("127.0.0.1", "localhost")
    say_other_port(name, url)
    _output.hint(f"cloudrl detach {name}")
    _output.data(url)


def detach(name: NameArgument) -> None:
    """Close the tunnel that `cloudrl attach` or `up` keeps open. The cluster goes on."""
    from cloudrl.providers.registry import locate, provider

    ref = locate(name)
    was_there = provider(ref.provider).detach(ref.name)
    _output.note(f"the tunnel to {name} is closed" if was_there else f"there was no tunnel to {name}")


def say_other_port(name: str, url: str) -> None:
    """Say that the dashboard is not where one looks for it, if so."""
    from cloudrl.spec.ports import RAY_PORT

    if not url.endswith(f":{RAY_PORT}"):
        _output.note(f"port {RAY_PORT} is taken on this machine; the dashboard of {name} is at {url}")
