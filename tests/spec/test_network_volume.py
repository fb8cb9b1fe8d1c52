from __future__ import annotations

from typing import get_args

import pytest
from dstack._internal.core.models.volumes import AnyVolumeConfiguration

from cloudrl.errors import SpecError
from cloudrl.spec import NetworkVolume
from cloudrl.spec.network_volume import VOLUME_BACKENDS

BASE = {"name": "data", "backend": "aws", "region": "us-east-1", "size": "500GB"}

WRONG = [
    ("name", "Data", "'Data' is not a name; did you mean 'data'?"),
    ("backend", "amazon", "'amazon' is not a backend with network volumes"),
    ("backend", "azure", "'azure' is not a backend with network volumes"),
    ("backend", "gpc", "'gpc' is not a backend with network volumes; did you mean 'gcp'?"),
    ("region", "", "'' is empty"),
    ("region", ["us-east-1"], "['us-east-1'] is not text"),
    ("availability_zone", "a,b", "'a,b' is not one name; did you mean ['a', 'b']?"),
    ("size", "500G", "'500G' is not a size; did you mean '500GB'?"),
    ("size", "512MB", "'512MB' is less than 1GB, and dstack counts whole ones"),
    ("size", "1.5GB", "'1.5GB' is not a whole number of GB; did you mean '2GB'?"),
    ("volume_id", 7, "7 is not text"),
    ("claim_name", " x", "' x' is not one name; did you mean ['x']?"),
    ("storage_class_name", "", "'' is empty"),
    ("access_modes", ["readwritemany"],
     "'readwritemany' is not an access mode of Kubernetes; did you mean 'ReadWriteMany'?"),
    ("access_modes", "ReadWriteMany",
     "'ReadWriteMany' is one text where a list is expected; write ['ReadWriteMany']"),
    ("read_only", "no", "'no' is neither True nor False"),
    ("auto_cleanup_duration", "1 week", "'1 week' is not a duration; did you mean '1w'?"),
    ("auto_cleanup_duration", 0, "0 is no time at all"),
    ("tags", {"a": "\n"}, "tag 'a': '\\n' is not its value"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "message"), WRONG)
def test_a_wrong_value_is_refused_with_its_field(field, value, message):
    with pytest.raises(SpecError) as caught:
        NetworkVolume(**{**BASE, field: value})
    assert caught.value.message == f"NetworkVolume.{field}: {message}"


def test_each_field_has_a_test_of_a_wrong_value():
    assert {field for field, _, _ in WRONG} == set(NetworkVolume.model_fields)


def test_the_fields_of_each_backend_are_dstacks():
    theirs = {
        kind.model_fields["backend"].default.value: {
            name for name, field in kind.model_fields.items() if not field.exclude
        }
        for kind in get_args(AnyVolumeConfiguration)
    }
    assert set(theirs) == set(VOLUME_BACKENDS)
    values = {
        "region": "r", "availability_zone": "z", "volume_id": "v", "claim_name": "c", "storage_class_name": "s",
        "access_modes": ["ReadWriteMany"], "read_only": True, "size": "1GB",
    }  # fmt: skip
    for backend, fields in theirs.items():
        taken = {"name", "backend", "type", "tags", "auto_cleanup_duration"}
        for name, value in values.items():
            try:
                NetworkVolume(name="data", backend=backend, **{name: value})
                taken.add(name)
            except SpecError as error:
                if f"a volume of {backend} has no {name}" not in error.message:
                    taken.add(name)
        assert taken == fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": None}, "NetworkVolume: neither size nor volume_id is given"),
        ({"region": None}, "NetworkVolume: a volume of aws needs a region"),
        ({"volume_id": "vol-1"}, "NetworkVolume: size '500GB' is for a new disk, and 'vol-1' exists"),
        ({"claim_name": "x"}, "NetworkVolume: a volume of aws has no claim_name"),
        ({"backend": "lium"}, "NetworkVolume: a volume of lium has no region"),
        ({"backend": "runpod", "availability_zone": "z"},
         "NetworkVolume: a volume of runpod has no availability_zone"),
        ({"backend": "kubernetes", "size": None}, "NetworkVolume: neither size nor claim_name is given"),
        ({"size": None, "volume_id": "vol-1", "auto_cleanup_duration": "1d"},
         "NetworkVolume: auto_cleanup_duration '1d' is for disks that dstack made, and 'vol-1' exists already"),
    ],
)  # fmt: skip
def test_fields_that_do_not_go_together(fields, message):
    with pytest.raises(SpecError) as caught:
        NetworkVolume(**{**BASE, **fields})
    assert caught.value.message == message
    assert caught.value.hint


def test_volumes_that_exist_and_shared_ones():
    assert NetworkVolume(**{**BASE, "size": None, "volume_id": "vol-1"}).volume_id == "vol-1"
    assert (
        NetworkVolume(name="hf", backend="kubernetes", size="1TB", access_modes=["ReadWriteMany"]).region
        is None
    )
    assert NetworkVolume(name="hf", backend="daytona").size is None
