"""A network volume as dstack's YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.render.yaml_text import Section, document

if TYPE_CHECKING:
    from cloudrl.spec import NetworkVolume

_HEADER = """\
Network volume for cloudrl clusters. To create it:

  dstack apply -f {name}.dstack.yml

A cluster mounts it with `volumes: [{name}:/checkpoints]`, for instance."""


def volume_to_dstack(volume: NetworkVolume) -> str:
    """Render the YAML of a dstack network volume.

    Returns:
        The text of a `.dstack.yml` file, ending in a line break.
    """
    return document(
        _HEADER.format(name=volume.name),
        [
            Section({"type": "volume", "name": volume.name}),
            Section(
                {
                    "backend": volume.backend,
                    "region": volume.region,
                    "availability_zone": volume.availability_zone,
                }
            ),
            Section(
                {
                    "size": volume.size,
                    "volume_id": volume.volume_id,
                    "claim_name": volume.claim_name,
                    "storage_class_name": volume.storage_class_name,
                    "access_modes": list(volume.access_modes),
                    "read_only": volume.read_only or None,
                }
            ),
            Section(
                {"auto_cleanup_duration": volume.auto_cleanup_duration}, comment=_cleanup_comment(volume)
            ),
            Section({"tags": dict(volume.tags)}),
        ],
    )


def _cleanup_comment(volume: NetworkVolume) -> str:
    if volume.auto_cleanup_duration in (None, "off"):
        return ""
    return "Unused for so long, it is deleted with all that lies on it."
