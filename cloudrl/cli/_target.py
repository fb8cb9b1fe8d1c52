"""Which cluster a command means: `--cluster NAME`, `--address URL`, or the only one that is there.

RAY_ADDRESS is not asked: inside a Ray job it is Ray's own address, and a stray one leads to another cluster.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.errors import InputError

if TYPE_CHECKING:
    from cloudrl.connection import Connection
    from cloudrl.providers import Provider

PLAIN_URL = "http://localhost:8265"

ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", "-c", metavar="NAME", help="The cluster; not needed when there is one."),
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", metavar="URL", help="Any Ray dashboard, for example http://localhost:8265."),
]


def connect(cluster: str | None, address: str | None) -> Connection:
    """The connection that the two options mean.

    Raises:
        InputError: both are given, there is no such cluster, or there are several to choose from.
    """
    if cluster is not None and address is not None:
        raise InputError(
            f"--cluster {cluster} and --address {address} are two targets", hint="Give one of the two"
        )
    if address is not None:
        return _plain(address)
    local = _local()
    if cluster is not None:
        return local.attach(cluster)
    running = running_clusters()
    if len(running) > 1:
        raise InputError(
            f"several clusters are up: {', '.join(running)}", hint=f"Choose one: --cluster {running[0]}"
        )
    return local.attach(running[0]) if running else _plain(PLAIN_URL)


def running_clusters() -> list[str]:
    """Names of the local clusters that have a living agent."""
    local = _local()
    return [name for name in local.names() if local.status(name).phase not in ("down", "failed")]


def one_cluster(name: str | None) -> str:
    """The name that was given, or that of the only cluster.

    Raises:
        InputError: none was given and there is not exactly one.
    """
    if name is not None:
        return name
    known = running_clusters() or _local().names()
    if len(known) == 1:
        return known[0]
    if not known:
        raise InputError("there is no cluster", hint="Start one: cloudrl up --on local --nodes 2")
    raise InputError(f"which one? There are {', '.join(known)}", hint=f"For example: {known[0]}")


def _local() -> Provider:
    from cloudrl.providers import provider

    return provider("local")


def _plain(address: str) -> Connection:
    from cloudrl.connection import Connection

    url = address if "://" in address else f"http://{address}"
    return Connection(name=url, ray_url=url, ray_token=_ray_token())


def _ray_token() -> str | None:
    """Where Ray itself looks (docs.ray.io, token authentication), but for ~/.ray/auth_token.

    That file is left by any local `ray.init()`, and says nothing about this cluster.
    """
    from pathlib import Path

    token = os.environ.get("RAY_AUTH_TOKEN")
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if token or not path:
        return token or None
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError(f"RAY_AUTH_TOKEN_PATH names {path}, and there is no such file")
    return file.read_text().strip()
