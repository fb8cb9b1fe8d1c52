"""Network volumes as YAML, read by dstack's own models."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
from dstack._internal.core.models.resources import Memory
from hostile import lines, names, tags
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.render import volume_to_dstack
from cloudrl.spec import Duration, NetworkVolume

FEW = max(20, settings().max_examples // 2)
FIELDS = (
    "region", "availability_zone", "volume_id", "claim_name", "storage_class_name", "read_only", "name",
)  # fmt: skip


def takes(text: str) -> bool:
    try:
        NetworkVolume(name="data", backend="aws", region=text, size="1GB")
    except SpecError:
        return False
    return True


words = lines.filter(takes)
sizes = st.sampled_from(["1GB", "500GB", "1TB", "0.5TB", 100])
cleanup = st.sampled_from([None, "off", "7d", 3600])
new_disks = st.fixed_dictionaries(
    {"name": names, "backend": st.sampled_from(["aws", "gcp"]), "region": words, "size": sizes},
    optional={"availability_zone": words, "auto_cleanup_duration": cleanup, "tags": tags},
)
old_disks = st.fixed_dictionaries(
    {
        "name": names,
        "backend": st.sampled_from(["aws", "gcp", "runpod"]),
        "region": words,
        "volume_id": words,
    },
    optional={"tags": tags},
)
claims = st.fixed_dictionaries(
    {"name": names, "backend": st.just("kubernetes"), "size": sizes},
    optional={
        "region": words,
        "storage_class_name": words,
        "access_modes": st.sampled_from([["ReadWriteMany"], ["ReadWriteOnce", "ReadOnlyMany"]]),
        "read_only": st.booleans(),
        "auto_cleanup_duration": cleanup,
    },
)
unsized = st.fixed_dictionaries(
    {"name": names, "backend": st.sampled_from(["daytona", "lium"])},
    optional={"volume_id": words, "tags": tags},
)


def parsed(volume: NetworkVolume) -> Any:
    return parse_apply_configuration(yaml.safe_load(volume_to_dstack(volume)))


@settings(max_examples=FEW)
@given(st.one_of(new_disks, old_disks, claims, unsized))
def test_a_volume_means_to_dstack_what_it_means_to_us(fields):
    volume = NetworkVolume(**fields)
    theirs = parsed(volume)
    assert (theirs.type, theirs.backend.value) == ("volume", volume.backend)
    for name in FIELDS:
        assert (getattr(theirs, name, None) or None) == (getattr(volume, name) or None), name
    if volume.size is not None:
        assert theirs.size == Memory.parse(volume.size)
        assert theirs.size_gb == theirs.size
    ours = volume.auto_cleanup_duration
    assert theirs.auto_cleanup_duration == (
        -1 if ours == "off" else None if ours is None else Duration.parse(ours).seconds
    )
    if volume.access_modes:
        assert tuple(theirs.access_modes) == volume.access_modes
    assert (theirs.tags or {}) == volume.tags
    assert theirs.is_external == (volume.volume_id is not None)


GOLDEN = {
    "volume": NetworkVolume(
        name="volume",
        backend="aws",
        region="us-east-1",
        availability_zone="us-east-1a",
        size="1TB",
        auto_cleanup_duration="7d",
        tags={"team": "rl"},
    ),
    "volume-kubernetes": NetworkVolume(
        name="volume-kubernetes", backend="kubernetes", size="2TB", access_modes=["ReadWriteMany"]
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_rendered_bytes(name, golden, repository):
    golden(repository / "tests" / "golden" / f"{name}.dstack.yml", volume_to_dstack(GOLDEN[name]))
    assert volume_to_dstack(GOLDEN[name]) == volume_to_dstack(GOLDEN[name].replace())


def test_a_volume_that_is_never_cleaned_up_has_no_warning():
    text = volume_to_dstack(NetworkVolume(name="data", backend="daytona", auto_cleanup_duration="off"))
    assert "auto_cleanup_duration: 'off'\n" in text
    assert "deleted" not in text
