"""Which cluster a command means: `--cluster NAME`, `--address URL`, or the only one that is there.

RAY_ADDRESS is not asked: inside a Ray job it is Ray's own address, and a stray one leads to another cluster.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError

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
    if cluster is not None:
        return home_of(cluster).attach(cluster)
    running = running_clusters()
    if len(running) > 1:
        raise InputError(
            f"several clusters are up: {', '.join(running)}",
            hint=f"Choose one: --cluster {next(iter(running))}",
        )
    for name, home in running.items():
        return provider_named(home).attach(name)
    return _plain(PLAIN_URL)


def running_clusters() -> dict[str, str]:
    """Name -> provider, of the clusters that are up or coming up. A local one hides a dstack one of its name.

    Raises:
        ConnectionFailed: the dstack server does not answer, and nothing runs here.
    """
    here = dict.fromkeys(_running_here(), "local")
    try:
        return {**dict.fromkeys(_dstack_names(), "dstack"), **here}
    except ConnectionFailed:
        if here:
            return here
        raise


def all_clusters() -> list[tuple[str, str]]:
    """Name and provider of every cluster, also of local ones that are down.

    One that is down here makes room for one on dstack; a name that is alive in both places stands there twice.
    """
    there, here = _dstack_names(), _running_here()
    dead = [name for name in provider_named("local").names() if name not in here and name not in there]
    return [
        *((name, "local") for name in dead),
        *((name, "dstack") for name in there),
        *((name, "local") for name in here),
    ]


def known_clusters() -> dict[str, str]:
    """Name -> provider: a local one that is down first, then one on dstack, then a living local one."""
    return dict(all_clusters())


def homes_of(name: str, on: str | None = None) -> list[Provider]:
    """The provider of a cluster; both where the name is alive here and on dstack, unless one is named."""
    if on is not None:
        return [provider_named(on)]
    chosen = home_of(name)
    if chosen is provider_named("local") and name in _running_here() and _is_on_dstack(name):
        return [provider_named("dstack"), chosen]
    return [chosen]


def home_to_end(name: str, on: str | None = None) -> Provider:
    """The provider of a cluster that is going to be ended.

    Raises:
        InputError: the name is alive in two places, and none was named.
    """
    homes = homes_of(name, on)
    if len(homes) > 1:
        raise InputError(
            f"there are two clusters {name}: on this machine and on dstack",
            hint=f"cloudrl down {name} --on local\ncloudrl down {name} --on dstack",
        )
    return homes[0]


def refuse_elsewhere(name: str, on: str) -> None:
    """One name for one cluster: with two of them nobody knows which one a later command means.

    Raises:
        InputError: a cluster of that name is alive with another provider.
    """
    other = "dstack" if on == "local" else "local"
    if _is_on_dstack(name) if other == "dstack" else name in _running_here():
        where = "on dstack" if other == "dstack" else "on this machine"
        raise InputError(
            f"a cluster {name} is there already, {where}",
            hint=f"Choose another name\nEnd it first: cloudrl down {name}",
        )


def home_of(name: str) -> Provider:
    """The provider of a cluster: this machine if it runs here, dstack if it runs there, this machine otherwise.

    Also a run of dstack that is over counts, where this machine knows nothing of the name.
    """
    from cloudrl.providers.dstack.server import is_configured

    local = provider_named("local")
    here = name in local.names()
    if here and local.status(name).phase not in ("down", "failed"):
        return local
    if name in _dstack_names() or (not here and is_configured()):
        return provider_named("dstack")
    return local


def one_cluster(name: str | None) -> str:
    """The name that was given, or that of the only cluster.

    Raises:
        InputError: none was given and there is not exactly one.
    """
    if name is not None:
        return name
    known = list(running_clusters() or known_clusters())
    if len(known) == 1:
        return known[0]
    if not known:
        raise InputError("there is no cluster", hint="Start one: cloudrl up --on local --nodes 2")
    raise InputError(f"which one? There are {', '.join(known)}", hint=f"For example: {known[0]}")


def provider_named(name: str) -> Provider:
    """A provider by name, imported when it is asked for."""
    from cloudrl.providers import provider

    return provider(name)


def _running_here() -> list[str]:
    """Names of the local clusters that have a living agent."""
    local = provider_named("local")
    return [name for name in local.names() if local.status(name).phase not in ("down", "failed")]


def _dstack_names() -> list[str]:
    """Names of the clusters on dstack; none where no server is configured."""
    from cloudrl.providers.dstack.server import is_configured

    return provider_named("dstack").names() if is_configured() else []


def _is_on_dstack(name: str) -> bool:
    """Whether a run of that name goes on there; a server that does not answer knows of none."""
    try:
        return name in _dstack_names()
    except CloudrlError:
        return False


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
