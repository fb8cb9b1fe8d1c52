"""Which provider has the cluster of a name. Dstack's part is imported where a server is configured."""

from __future__ import annotations

from cloudrl.errors import CloudrlError, InputError
from cloudrl.providers import provider

OVER = ("down", "failed")
"""Phases of a cluster that nothing is left of but its files."""


def provider_of(name: str) -> str:
    """The provider of the one cluster of that name.

    Raises:
        InputError: it is alive in two places.
    """
    found = providers_of(name)
    if len(found) > 1:
        raise InputError(
            f"there are two clusters {name}: on this machine and on dstack",
            hint=f"End one of them: cloudrl down {name} --on local\n"
            f"Or the other: cloudrl down {name} --on dstack",
        )
    return found[0]


def providers_of(name: str) -> list[str]:
    """The providers that have a cluster: both where it is alive here and on dstack.

    A name that this machine knows nothing of is dstack's where a server is configured. One that it knows is this
    machine's, also while the server does not answer, unless it is down here and alive on dstack.
    """
    local = provider("local")
    if name not in local.names():
        return ["dstack"] if _is_dstack_configured() else ["local"]
    if not _is_on_dstack(name):
        return ["local"]
    return ["dstack"] if local.status(name).phase in OVER else ["dstack", "local"]


def ensure_name_free(name: str, on: str) -> None:
    """One name for one cluster: with two of them nobody knows which one a later command means.

    Raises:
        InputError: a cluster of that name is alive with another provider.
    """
    if on != "dstack" and _is_on_dstack(name):
        where, other = "on dstack", "dstack"
    elif on != "local" and name in active("local"):
        where, other = "on this machine", "local"
    else:
        return
    raise InputError(
        f"a cluster {name} is there already, {where}",
        hint=f"Choose another name\nEnd it first: cloudrl down {name} --on {other}",
    )


def active(on: str) -> list[str]:
    """Names of a provider's clusters that go on; none of dstack's where no server is configured.

    Raises:
        ConnectionFailed: the provider's server does not answer.
    """
    if on == "dstack":
        return provider("dstack").names() if _is_dstack_configured() else []
    return [name for name in provider(on).names() if provider(on).status(name).phase not in OVER]


def _is_on_dstack(name: str) -> bool:
    """Whether a run of that name goes on there; a server that does not answer knows of none."""
    try:
        return name in active("dstack")
    except CloudrlError:
        return False


def _is_dstack_configured() -> bool:
    from cloudrl.providers.dstack.server import is_configured

    return is_configured()
