from __future__ import annotations

import gpuhunt
import pytest

from cloudrl.errors import SpecError
from cloudrl.spec import Cluster
from cloudrl.spec.vendors import vendor_of


@pytest.mark.parametrize(
    ("gpu", "vendor"),
    [
        (None, "nvidia"),
        ("80GB:8", "nvidia"),
        ("H100:8", "nvidia"),
        ("MI300X:8", "amd"),
        ("mi300x,MI325X:8", "amd"),
        ("amd:192GB:8", "amd"),
        ("AMD:MI300X:8", "amd"),
        ("tpu:8", "google"),
        ("intel:gaudi2:8", "intel"),
    ],
)
def test_the_vendor_by_name_or_as_given(gpu, vendor):
    assert vendor_of(gpu) == Cluster(name="one", gpu=gpu).vendor == vendor


@pytest.mark.parametrize("name", [gpu.name for gpu in gpuhunt.KNOWN_AMD_GPUS])
def test_each_gpu_of_amd_that_dstack_knows_is_amds(name):
    assert vendor_of(f"{name}:8") == vendor_of(f"{name.lower()}:8") == "amd"


def test_no_other_gpu_that_dstack_knows_is_amds():
    others = [gpu.name for gpu in gpuhunt.KNOWN_ACCELERATORS if gpu not in gpuhunt.KNOWN_AMD_GPUS]
    assert len(others) > 20
    assert {vendor_of(f"{name}:8") for name in others if name[0].isalpha()} == {"nvidia"}


@pytest.mark.parametrize(
    ("gpu", "message", "hint"),
    [
        (
            "H100,MI300X:8",
            "'H100,MI300X:8' mixes MI300X of AMD with H100, and no image runs on both",
            "one vendor",
        ),
        ("nvidia:MI300X:8", "'nvidia:MI300X:8': MI300X is made by AMD; did you mean 'amd:MI300X:8'?", ""),
        ("amd:H100:8", "'amd:H100:8': H100 is not made by AMD", "leave the vendor out"),
    ],
)
def test_vendors_that_contradict_the_names_are_refused(gpu, message, hint):
    with pytest.raises(SpecError) as caught:
        Cluster(name="one", gpu=gpu)
    assert caught.value.message == f"Cluster.gpu: {message}"
    assert hint in (caught.value.hint or "")
