"""A network volume as dstack's YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudrl.render.dstack_models import check_with_dstack, refuse_rendered
from cloudrl.render.yaml_text import Section, document

if TYPE_CHECKING:
    from cloudrl.spec import NetworkVolume

_PLACE, _LAST = ("availability_zone",), ("auto_cleanup_duration", "tags")
_HEADER = """\
Network volume for cloudrl clusters. To create it:

  dstack apply -f {name}.dstack.yml

A cluster mounts it with `volumes: [{name}:/checkpoints]`, for instance."""


def volume_to_dstack(volume: NetworkVolume) -> str:
    """Render the YAML of a dstack network volume.

    Returns:
        The text of a `.dstack.yml` file, ending in a line break.

    Raises:
        SpecError: dstack refuses it.
    """
    refuse_rendered(
        volume.dstack, ("type", *(name for name in type(volume).model_fields if name != "dstack"))
    )
    others = {name: value for name, value in volume.dstack.items() if name not in (*_PLACE, *_LAST)}
    text = document(
        _HEADER.format(name=volume.name),
        [
            Section({"type": "volume", "name": volume.name}),
            Section({"backend": volume.backend, "region": volume.region, **_of(volume, _PLACE)}),
            Section({"size": volume.size, "volume_id": volume.volume_id, **others}),
            Section(_of(volume, ("auto_cleanup_duration",)), comment=_cleanup_comment(volume)),
            Section(_of(volume, ("tags",))),
        ],
    )
    check_with_dstack(text, volume.dstack)
    return text


def _of(volume: NetworkVolume, names: tuple[str, ...]) -> dict[str, Any]:
    """These keys of the section `dstack`, as they are."""
    return {name: volume.dstack[name] for name in names if name in volume.dstack}


def _cleanup_comment(volume: NetworkVolume) -> str:
    if volume.dstack.get("auto_cleanup_duration") in (None, "off", -1, False):
        return ""
    return "Unused for so long, it is deleted with all that lies on it."
