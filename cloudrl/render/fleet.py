"""A fleet as dstack's YAML. Facts about dstack are from 0.22.5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudrl.render.yaml_text import Section, document, plain
from cloudrl.spec.run_policy import Retry

if TYPE_CHECKING:
    from cloudrl.spec import Fleet, NodeRange, SshConfig, SshHost, SshProxy

_CLOUD_HEADER = """\
Fleet for cloudrl clusters: machines that dstack rents. To create it:

  dstack apply -f {name}.dstack.yml"""

_SSH_HEADER = """\
Fleet for cloudrl clusters: machines of your own. Each has Docker and the driver of its GPUs, takes the key, and
lets the user run sudo without a password. To create it:

  dstack apply -f {name}.dstack.yml"""


def fleet_to_dstack(fleet: Fleet) -> str:
    """Render the YAML of a dstack fleet.

    Returns:
        The text of a `.dstack.yml` file, ending in a line break.
    """
    header = (_SSH_HEADER if fleet.ssh_config else _CLOUD_HEADER).format(name=fleet.name)
    machines = _own(fleet.ssh_config) if fleet.ssh_config else _rented(fleet)
    return document(
        header,
        [
            Section({"type": "fleet", "name": fleet.name}),
            Section({"placement": fleet.placed}, comment=_placement_comment(fleet)),
            *machines,
            Section(
                {"blocks": fleet.blocks if fleet.blocks != 1 else None},
                comment="Several runs fit on a machine; a multi-node run takes whole ones.",
            ),
            Section({"tags": dict(fleet.tags)}),
        ],
    )


def _placement_comment(fleet: Fleet) -> str:
    if fleet.placed != "cluster":
        return ""
    return "One place and the fastest network there; dstack runs tasks of several nodes nowhere else."


def _rented(fleet: Fleet) -> list[Section]:
    nodes = fleet.node_range
    parts = {name: getattr(fleet, name) for name in ("gpu", "cpu", "memory", "disk")}
    return [
        Section({"nodes": _nodes(nodes) if nodes else None}, comment=_nodes_comment(fleet)),
        Section({"idle_duration": fleet.idle_after}),
        Section({"resources": {name: plain(value) for name, value in parts.items() if value is not None}}),
        Section(
            {
                "backends": list(fleet.backends),
                "regions": list(fleet.regions),
                "availability_zones": list(fleet.availability_zones),
                "instance_types": list(fleet.instance_types),
                "reservation": fleet.reservation,
                "spot_policy": fleet.spot_policy,
                "max_price": fleet.max_price,
                "retry": _retry(fleet.retry),
            }
        ),
    ]


def _nodes(nodes: NodeRange) -> int | str | dict[str, Any]:
    """The shortest spelling of dstack: a number, a range, or the mapping that alone can say `target`."""
    if nodes.target != nodes.min:
        most = {"max": nodes.max} if nodes.max is not None else {}
        return {"min": nodes.min, "target": nodes.target, **most}
    return nodes.min if nodes.is_fixed else f"{nodes.min}..{'' if nodes.max is None else nodes.max}"


def _nodes_comment(fleet: Fleet) -> str:
    nodes = fleet.node_range
    if nodes is None:
        return ""
    if nodes.is_fixed:
        return "A fixed number: rented at once, and paid for until the fleet is deleted."
    now = f"{nodes.target} at once" if nodes.target else "None before a run needs it"
    most = "" if nodes.max is None else f", at most {nodes.max} together"
    back = (
        "never given back"
        if fleet.idle_after == "off"
        else f"given back after {fleet.idle_after} without a run"
    )
    stay = f" ({nodes.min} always stay{'s' if nodes.min == 1 else ''})" if nodes.min else ""
    return f"{now}{most}; {back}{stay}."


def _retry(retry: Retry | bool | None) -> dict[str, Any] | bool | None:
    if isinstance(retry, Retry):
        return {"on_events": list(retry.on_events), "duration": retry.duration}
    return retry


def _own(config: SshConfig) -> list[Section]:
    return [
        Section(
            {
                "ssh_config": _given(
                    {
                        "user": config.user,
                        "port": config.port,
                        "identity_file": config.identity_file,
                        "proxy_jump": config.proxy_jump and _proxy(config.proxy_jump),
                        "network": config.network,
                        "hosts": [_host(host) for host in config.hosts],
                    }
                )
            }
        )
    ]


def _host(host: SshHost) -> str | dict[str, Any]:
    """A text where nothing but the name is given, as dstack writes it."""
    options = {
        "port": host.port,
        "user": host.user,
        "identity_file": host.identity_file,
        "proxy_jump": host.proxy_jump and _proxy(host.proxy_jump),
        "internal_ip": host.internal_ip,
        "blocks": host.blocks,
    }
    given = _given(options)
    return {"hostname": host.hostname, **given} if given else host.hostname


def _proxy(proxy: SshProxy) -> dict[str, Any]:
    return _given(
        {
            "hostname": proxy.hostname,
            "port": proxy.port,
            "user": proxy.user,
            "identity_file": proxy.identity_file,
        }
    )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
