"""A network volume as dstack's YAML."""

from __future__ import annotations

from cloudrl.render.dstack_models import check_with_dstack, refuse_rendered
from cloudrl.render.yaml_text import Section, document, pick
from cloudrl.spec import NetworkVolume

_PLACE, _LAST = ("availability_zone",), ("auto_cleanup_duration", "tags")
_CLEANUP = "Unused for so long, it is deleted with all that lies on it."
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
    refuse_rendered(volume.dstack, ("type", *(name for name in type(volume).model_fields if name != "dstack")))
    is_cleaned_up = volume.dstack.get("auto_cleanup_duration") not in (None, "off", -1, False)
    others = {name: value for name, value in volume.dstack.items() if name not in (*_PLACE, *_LAST)}
    text = document(
        _HEADER.format(name=volume.name),
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
