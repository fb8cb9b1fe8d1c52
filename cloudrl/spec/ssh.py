"""Machines of one's own that dstack reaches over SSH. Field names are dstack 0.22.5's.

Source of the rules: core/models/fleets.py (SSHParams, SSHHostParams, SSHProxyParams) and
server/services/fleets.py (_validate_all_ssh_params_specified, _validate_internal_ips).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import PlainValidator, model_validator

from cloudrl.errors import SpecError
from cloudrl.spec.base import Spec
from cloudrl.spec.fields import list_of, nested, one_line, optional
from cloudrl.spec.names import host_name, login
from cloudrl.spec.ports import port_number

if TYPE_CHECKING:
    from typing_extensions import Self

_HOSTS = "For example ['192.168.0.10', '192.168.0.11']"


def key_file(value: object) -> str:
    """The path of a private key on the machine that creates the fleet."""
    path = one_line(value)
    if path.endswith(".pub"):
        raise SpecError(f"{value!r} is a public key; did you mean {path.removesuffix('.pub')!r}?")
    return path


def block_count(value: object) -> int | str:
    """Into how many parts a machine is split, or `auto`."""
    if value == "auto":
        return "auto"
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{value!r} is not a number of blocks", hint="A whole number from 1, or 'auto'")
    return value


def _private_ip(value: object) -> str:
    written = one_line(value)
    try:
        address = ipaddress.ip_address(written)
    except ValueError:
        raise SpecError(f"{value!r} is not an IP address", hint="For example '10.0.0.5'") from None
    if not address.is_private:
        raise SpecError(
            f"{value!r} is not a private address", hint="The one that the machines use among each other"
        )
    return str(address)


def _private_network(value: object) -> str:
    written = one_line(value)
    try:
        network = ipaddress.ip_network(written, strict=False)
    except ValueError:
        raise SpecError(f"{value!r} is not a network", hint="For example '10.0.0.0/24'") from None
    if not network.is_private:
        raise SpecError(f"{value!r} is not a private network", hint="For example '10.0.0.0/24'")
    if network.num_addresses == 1:
        raise SpecError(f"{value!r} is one address, not a network", hint="For example '10.0.0.0/24'")
    return written


class SshProxy(Spec):
    """A machine through which others are reached."""

    hostname: Annotated[str, PlainValidator(host_name)]
    user: Annotated[str, PlainValidator(login)]
    identity_file: Annotated[str, PlainValidator(key_file)]
    port: Annotated[int | None, PlainValidator(optional(port_number))] = None


class SshHost(Spec):
    """One machine; what is None is taken from the fleet's `SshConfig`."""

    hostname: Annotated[str, PlainValidator(host_name)]
    port: Annotated[int | None, PlainValidator(optional(port_number))] = None
    user: Annotated[str | None, PlainValidator(optional(login))] = None
    identity_file: Annotated[str | None, PlainValidator(optional(key_file))] = None
    proxy_jump: Annotated[SshProxy | None, PlainValidator(optional(nested(SshProxy)))] = None
    internal_ip: Annotated[str | None, PlainValidator(optional(_private_ip))] = None
    blocks: Annotated[int | str | None, PlainValidator(optional(block_count))] = None


def _host(value: object) -> SshHost:
    return SshHost(hostname=value) if isinstance(value, str) else nested(SshHost)(value)


def _hosts(value: object) -> tuple[SshHost, ...]:
    hosts = list_of(_host)(value)
    if not hosts:
        raise SpecError("there is no host", hint=_HOSTS)
    places = [(host.hostname, host.port) for host in hosts]
    for place in places:
        if places.count(place) > 1:
            raise SpecError(f"{place[0]!r} stands twice")
    return hosts


class SshConfig(Spec):
    """The hosts, and how all of them are reached."""

    hosts: Annotated[Sequence[SshHost], PlainValidator(_hosts)]
    """Host names, or mappings with options that differ for one host."""
    user: Annotated[str | None, PlainValidator(optional(login))] = None
    port: Annotated[int | None, PlainValidator(optional(port_number))] = None
    identity_file: Annotated[str | None, PlainValidator(optional(key_file))] = None
    network: Annotated[str | None, PlainValidator(optional(_private_network))] = None
    """The network that the machines use among each other, where they have several."""
    proxy_jump: Annotated[SshProxy | None, PlainValidator(optional(nested(SshProxy)))] = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for host in self.hosts:
            if self.user is None and host.user is None:
                raise SpecError(f"there is no user for host {host.hostname!r}", hint="user: ubuntu")
            if self.identity_file is None and host.identity_file is None:
                raise SpecError(
                    f"there is no identity_file for host {host.hostname!r}",
                    hint="identity_file: ~/.ssh/id_ed25519",
                )
        without = [host.hostname for host in self.hosts if host.internal_ip is None]
        if without and len(without) < len(self.hosts):
            raise SpecError(
                f"internal_ip is given for some hosts and not for {', '.join(without)}",
                hint="For all or for none",
            )
        if not without and self.network is not None:
            raise SpecError(
                f"network {self.network!r} and the hosts' internal_ip exclude each other",
                hint="Leave one of them out",
            )
        return self
