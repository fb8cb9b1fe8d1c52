"""Network volumes as YAML, read by dstack's own models."""

from typing import Any

import pytest
import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
from hostile import lines, names, tags
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.providers.dstack.machine_files import volume_to_dstack
from cloudrl.providers.dstack.volume import NetworkVolume

FEW = max(20, settings().max_examples // 2)

words = st.from_regex(r"[a-z0-9-]{1,9}", fullmatch=True) | st.sampled_from(["no", "1e3", "a: b", "- x"])
sizes = st.sampled_from(["1GB", "500GB", "1TB", "0.5TB", "100GB"])
sections = st.fixed_dictionaries(
    {}, optional={"auto_cleanup_duration": st.sampled_from(["off", "7d", 3600]), "tags": tags}
)
clouds = {"name": names, "backend": st.sampled_from(["aws", "gcp"]), "region": words}
of_kubernetes = st.fixed_dictionaries(
    {},
    optional={
        "storage_class_name": lines,
        "access_modes": st.sampled_from([["ReadWriteMany"], ["ReadWriteOnce", "ReadOnlyMany"]]),
        "read_only": st.booleans(),
    },
)
kubernetes = {"name": names, "backend": st.just("kubernetes"), "size": sizes}
volumes = st.one_of(
    st.fixed_dictionaries({**clouds, "size": sizes, "dstack": sections}),
    st.fixed_dictionaries({**clouds, "volume_id": words}),
    st.fixed_dictionaries(kubernetes, optional={"dstack": of_kubernetes}),
    st.fixed_dictionaries({"name": names, "backend": st.sampled_from(["daytona", "lium"]), "volume_id": words}),
)


def parsed(volume: NetworkVolume) -> Any:
    return parse_apply_configuration(yaml.safe_load(volume_to_dstack(volume)))


@settings(max_examples=FEW)
@given(volumes)
def test_a_volume_is_to_dstack_what_the_same_fields_would_be(fields):
    section = fields.pop("dstack", {})
    plain = parse_apply_configuration({"type": "volume", **fields, **section})
    assert parsed(NetworkVolume(**fields, dstack=section)) == plain


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backend": "aws", "size": "1GB"}, "region: Field required"),
        ({"backend": "azure", "size": "1GB"}, "volume: {"),
        ({"backend": "lium", "volume_id": "a", "size": "1GB"}, "size: dstack knows no 'size' of a volume"),
        ({"backend": "aws", "region": "a", "size": "1GB", "dstack": {"acces_modes": ["x"]}},
         "dstack.acces_modes: dstack knows no 'acces_modes' of a volume; did you mean 'access_modes'?"),
    ],
)  # fmt: skip
def test_what_dstack_refuses_is_refused_with_its_field(fields, message):
    with pytest.raises(SpecError) as caught:
        volume_to_dstack(NetworkVolume(name="data", **fields))
    assert caught.value.message.startswith(message)


GOLDEN = {
    "volume": NetworkVolume(
        name="volume",
        backend="aws",
        region="us-east-1",
        size="1TB",
        dstack={"availability_zone": "us-east-1a", "auto_cleanup_duration": "7d", "tags": {"team": "rl"}},
    ),
    "volume-kubernetes": NetworkVolume(
        name="volume-kubernetes", backend="kubernetes", size="2TB", dstack={"access_modes": ["ReadWriteMany"]}
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_rendered_bytes(name, golden, repository):
    golden(repository / "tests" / "golden" / f"{name}.dstack.yml", volume_to_dstack(GOLDEN[name]))
    assert volume_to_dstack(GOLDEN[name]) == volume_to_dstack(GOLDEN[name].replace())


def test_a_volume_that_is_never_cleaned_up_has_no_warning():
    text = volume_to_dstack(NetworkVolume(name="data", backend="daytona", dstack={"auto_cleanup_duration": "off"}))
    assert "auto_cleanup_duration: 'off'\n" in text
    assert "deleted" not in text
