"""Fleets and network volumes as dstack's YAML. Facts about dstack are from 0.22.5."""

from cloudrl.providers.dstack.fleet import Fleet
from cloudrl.providers.dstack.judge import check_with_dstack, refuse_rendered
from cloudrl.providers.dstack.volume import NetworkVolume
from cloudrl.providers.dstack.yaml_text import Section, document, pick, plain

_RENDERED = ("type", "name", "placement", "nodes", "idle_duration", "resources", "ssh_config")
_LAST = ("blocks", "tags")
_ONE_PLACE = "One place and the fastest network there; dstack runs tasks of several nodes nowhere else."

_CLOUD_HEADER = """\
Fleet for cloudrl clusters: machines that dstack rents. To create it:

  dstack apply -f {name}.dstack.yml"""

_SSH_HEADER = """\
Fleet for cloudrl clusters: machines of your own. Each has Docker and the driver of its GPUs, takes the key, and
lets the user run sudo without a password. To create it:

  dstack apply -f {name}.dstack.yml"""

_PLACE, _VOLUME_LAST = ("availability_zone",), ("auto_cleanup_duration", "tags")
_CLEANUP = "Unused for so long, it is deleted with all that is on it."
_VOLUME_HEADER = """\
Network volume for cloudrl clusters. To create it:

  dstack apply -f {name}.dstack.yml

A cluster mounts it with `volumes: [{name}:/checkpoints]`, for instance."""


def fleet_to_dstack(fleet: Fleet) -> str:
    """Render the YAML of a dstack fleet.

    Returns:
        The text of a `.dstack.yml` file, ending in a line break.

    Raises:
        SpecError: dstack refuses it.
    """
    header = (_CLOUD_HEADER if fleet.ssh_config is None else _SSH_HEADER).format(name=fleet.name)
    machines = _rented(fleet) if fleet.ssh_config is None else [Section({"ssh_config": fleet.ssh_config})]
    refuse_rendered(fleet.dstack, _RENDERED)
    text = document(
        header,
        [
            Section({"type": "fleet", "name": fleet.name}),
            Section({"placement": fleet.placed}, comment=_ONE_PLACE if fleet.placed == "cluster" else ""),
            *machines,
            Section({name: value for name, value in fleet.dstack.items() if name not in _LAST}),
            Section(
                {"blocks": fleet.dstack.get("blocks")},
                comment="Several runs fit on a machine; a multi-node run takes whole ones.",
            ),
            Section(pick(fleet.dstack, ("tags",))),
        ],
    )
    check_with_dstack(text, fleet.dstack)
    return text


def _rented(fleet: Fleet) -> list[Section]:
    parts = {"gpu": fleet.gpu, "cpu": fleet.cpu, "memory": fleet.memory, "disk": fleet.disk_asked}
    resources = {name: plain(str(value)) for name, value in parts.items() if value is not None}
    return [
        Section({"nodes": _nodes(fleet)}, comment=_nodes_comment(fleet)),
        Section({"idle_duration": fleet.idle_after}),
        Section({"resources": resources or None}),
    ]


def _nodes(fleet: Fleet) -> object:
    """A number, a range, or the user's mapping, which alone can say `target`."""
    nodes = fleet.node_range
    if nodes is None or isinstance(fleet.nodes, dict):
        return fleet.nodes
    return nodes.min if nodes.is_fixed else f"{nodes.min}..{'' if nodes.max is None else nodes.max}"


def _nodes_comment(fleet: Fleet) -> str:
    nodes = fleet.node_range
    if nodes is None:
        return ""
    if nodes.is_fixed:
        return "A fixed number: rented at once, and paid for until the fleet is deleted."
    now = f"{nodes.target} at once" if nodes.target else "None before a run needs it"
    most = "" if nodes.max is None else f", at most {nodes.max} together"
    back = "never given back" if fleet.idle_after == "off" else f"given back after {fleet.idle_after} without a run"
    stay = f" ({nodes.min} always stay{'s' if nodes.min == 1 else ''})" if nodes.min else ""
    return f"{now}{most}; {back}{stay}."


def volume_to_dstack(volume: NetworkVolume) -> str:
    """Render the YAML of a dstack network volume.

    Returns:
        The text of a `.dstack.yml` file, ending in a line break.

    Raises:
        SpecError: dstack refuses it.
    """
    refuse_rendered(volume.dstack, ("type", *(name for name in type(volume).model_fields if name != "dstack")))
    is_cleaned_up = volume.dstack.get("auto_cleanup_duration") not in (None, "off", -1, False)
    others = {name: value for name, value in volume.dstack.items() if name not in (*_PLACE, *_VOLUME_LAST)}
    text = document(
        _VOLUME_HEADER.format(name=volume.name),
        [
            Section({"type": "volume", "name": volume.name}),
            Section({"backend": volume.backend, "region": volume.region, **pick(volume.dstack, _PLACE)}),
            Section({"size": volume.size, "volume_id": volume.volume_id, **others}),
            Section(pick(volume.dstack, ("auto_cleanup_duration",)), comment=_CLEANUP if is_cleaned_up else ""),
            Section(pick(volume.dstack, ("tags",))),
        ],
    )
    check_with_dstack(text, volume.dstack)
    return text
