"""Which cluster a command means: `--cluster NAME`, `--address URL`, or the only one that is there.

RAY_ADDRESS is not asked: inside a Ray job it is Ray's own address, and a stray one leads to another cluster.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.cli import _output
from cloudrl.errors import InputError
from cloudrl.providers.registry import find, locate, names_in_use, provider

if TYPE_CHECKING:
    from cloudrl.providers.model import Status
    from cloudrl.transport import Connection

PLAIN_URL = "http://localhost:8265"

ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", "-c", metavar="NAME", help="The cluster; not needed when there is one."),
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", metavar="URL", help="Any Ray dashboard, for example http://localhost:8265."),
]


def connect(cluster: str | None, address: str | None, *, keep: bool = False) -> Connection:
    """The connection that the two options mean.

    Args:
        cluster: `--cluster`.
        address: `--address`.
        keep: let it be of use after this command, too.

    Raises:
        InputError: both are given, there is no such cluster, or there are several to choose from, also of one name.
    """
    if cluster is not None and address is not None:
        raise InputError(
            f"--cluster {cluster} and --address {address} are two targets", hint="Give one of the two"
        )
    if address is not None:
        return _plain(address)
    if cluster is not None:
        return _attach(cluster, keep=keep)
    running = running_clusters()
    if len(running) > 1:
        raise InputError(
            f"several clusters are up: {', '.join(running)}",
            hint=f"Choose one: --cluster {running[0]}",
        )
    for name in running:
        return _attach(name, keep=keep)
    return _plain(PLAIN_URL)


def _attach(name: str, *, keep: bool) -> Connection:
    ref = locate(name)
    return provider(ref.provider).attach(ref.name, keep_open=keep)


def running_clusters() -> list[str]:
    """Those that are up or coming up, as commands name them.

    Raises:
        CloudrlError: a provider could not be asked, and nothing runs with the others.
    """
    found = find()
    if found.silent and not found.running:
        raise found.silent[0].error
    return names_in_use(found.running)


def all_clusters() -> tuple[Status, ...]:
    """Every cluster, also those that are over and have left something.

    One that is over makes room for a living one of its name. A note says which provider could not be asked.

    Raises:
        CloudrlError: a provider could not be asked, and the others have none.
    """
    found = find()
    found.refuse_silent()
    for each in found.silent:
        _output.note(f"clusters on {each.provider} are not shown: {each.error.message}")
    return found.clusters


def one_cluster(name: str | None) -> str:
    """The name that was given, or that of one's only cluster.

    Raises:
        InputError: none was given and there is not exactly one.
    """
    if name is not None:
        return name
    known = running_clusters() or names_in_use(all_clusters())
    if len(known) == 1:
        return known[0]
    if not known:
        raise InputError("there is no cluster", hint="Start one: cloudrl up --on local --nodes 2")
    raise InputError(f"which one? There are {', '.join(known)}", hint=f"For example: {known[0]}")


def _plain(address: str) -> Connection:
    from cloudrl.transport import Connection

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
