"""Network volumes on a dstack server: create, look, delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloudrl.errors import CapacityError, InputError
from cloudrl.providers.dstack.server import Server, parse, pick, wait_for


@dataclass(frozen=True)
class VolumeState:
    """One look at a network volume. `cost` is what it has cost so far, in US dollars."""

    name: str
    status: str
    backend: str
    region: str
    size: str
    cost: float
    used_by: tuple[str, ...]
    """Names of the machines that it is attached to."""
    reason: str = ""


def create(server: Server, text: str) -> VolumeState:
    """Create a volume, or register an existing disk, from the YAML of a dstack volume.

    Raises:
        InputError: there is one of that name, or the server refuses it.
        ConnectionFailed: the server does not answer.
    """
    configuration = parse(text)
    if any(each.name == configuration.name for each in list_all(server)):
        raise InputError(
            f"project {server.project!r} has a volume {configuration.name!r}",
            hint=f"cloudrl volume list, or cloudrl volume delete {configuration.name}",
        )
    return _state(server.call(server.api.volumes.create, server.project, configuration))


def wait(server: Server, name: str, *, timeout_s: float = 600.0) -> VolumeState:
    """Wait until a volume can be used.

    Raises:
        CapacityError: the backend could not make it, with its reason, or took longer than `timeout_s`.
    """
    hint = f"cloudrl volume delete {name}"

    def poll() -> VolumeState | None:
        volume = get(server, name)
        if volume.status == "failed":
            raise CapacityError(f"volume {name!r}: {volume.reason or 'failed'}", hint=hint)
        return volume if volume.status == "active" else None

    volume = wait_for(poll, timeout_s=timeout_s)
    if volume is None:
        raise CapacityError(f"volume {name!r}: not there after {timeout_s:.0f} s", hint=hint)
    return volume


def get(server: Server, name: str) -> VolumeState:
    """One look at a volume.

    Raises:
        InputError: there is none of that name.
    """
    return pick(server, "volume", {each.name: each for each in list_all(server)}, name)


def list_all(server: Server) -> list[VolumeState]:
    """All volumes of the project."""
    return [_state(each) for each in server.call(server.api.volumes.list, server.project)]


def delete(server: Server, names: list[str]) -> None:
    """Delete volumes and what lies on them.

    Raises:
        InputError: the server refuses, as one of them is in use.
    """
    server.call(server.api.volumes.delete, server.project, names)


def _state(volume: Any) -> VolumeState:
    configuration, data = volume.configuration, volume.provisioning_data
    size_gb = data.size_gb if data is not None else getattr(configuration, "size", None)
    return VolumeState(
        name=volume.name,
        status=volume.status.value,
        backend=configuration.backend.value,
        region=volume.get_region(),
        size=f"{size_gb:g}GB" if size_gb else "",
        cost=volume.cost,
        used_by=tuple(each.instance.name for each in volume.attachments or () if each.instance is not None),
        reason=volume.status_message or "",
    )
