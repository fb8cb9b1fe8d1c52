"""GPU and CPU strings, and the same text read by dstack's own models."""

import gpuhunt
import pytest
from dstack._internal.core.models.resources import CPUSpec, GPUSpec, Memory, Range
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from cloudrl.errors import SpecError
from cloudrl.spec import Cluster, CountRange, Gpu
from cloudrl.spec.gpu import cpu

SEEN_IN_THE_WILD = [
    "80GB:8", "H100:8", "A100,H100:80GB:4", "24GB..40GB:2", "nvidia:24GB", "amd:MI300X:8", "8", "1..8",
    "H100", "H100:2..", "..40GB:1", "80GB..:8", "8:H100:80GB", "RTX4090:2", "rtx4090:2", "L40S",
    "TPU:v5litepod-8", "tt:n150", "intel:gaudi2:8", "AMD:192GB:8", "H100 : 8", "0", "T4,L4,A10G:1..4",
    "512MB:1", "H100:80GB..141GB:1..",
]  # fmt: skip


def dstack_gpu(text: object) -> GPUSpec:
    return TypeAdapter(GPUSpec).validate_python(text)


def meaning(gpu: GPUSpec) -> tuple[object, ...]:
    memory = gpu.memory and (gpu.memory.min, gpu.memory.max)
    return gpu.vendor and gpu.vendor.value, tuple(gpu.name or ()), memory, (gpu.count.min, gpu.count.max)


def our_meaning(gpu: Gpu) -> tuple[object, ...]:
    memory = gpu.memory and TypeAdapter(Range[Memory]).validate_python(gpu.memory)
    count = gpu.count or CountRange(1, None)  # dstack's default: one or more
    return gpu.vendor, gpu.name, memory and (memory.min, memory.max), (count.min, count.max)


counts = st.tuples(st.integers(0, 9), st.integers(0, 9)).flatmap(
    lambda pair: st.sampled_from([f"{min(pair)}", f"{min(pair)}..", f"..{max(pair)}", f"{min(pair)}..{max(pair)}"])
)
memories = st.tuples(st.integers(1, 99), st.integers(0, 99)).flatmap(
    lambda pair: st.sampled_from([f"{pair[0]}GB", f"{pair[0]}GB..", f"..{pair[0]}gb", f"{pair[0]}..{sum(pair)}GB"])
)
names = st.lists(st.sampled_from(["H100", "A100", "rtx4090", "MI300X", "v5p-8", "L40S"]), min_size=1).map(",".join)
vendors = st.sampled_from(["nvidia", "AMD", "Google", "tpu", "intel", "tt", "tenstorrent"])
gpus = st.permutations([vendors, names, memories, counts]).flatmap(
    lambda parts: st.lists(st.sampled_from(parts), min_size=1, max_size=4, unique_by=id).flatmap(
        lambda chosen: st.tuples(*chosen).map(":".join)
    )
)


@pytest.mark.parametrize("text", SEEN_IN_THE_WILD)
def test_examples_mean_to_dstack_what_they_mean_to_us(text):
    ours = Gpu.parse(text)
    assert our_meaning(ours) == meaning(dstack_gpu(text)) == meaning(dstack_gpu(str(ours)))
    assert Gpu.parse(str(ours)) == ours


@given(gpus)
def test_any_gpu_means_to_dstack_what_it_means_to_us(text):
    ours = Gpu.parse(text)
    assert our_meaning(ours) == meaning(dstack_gpu(text)) == meaning(dstack_gpu(str(ours)))


@given(st.text(alphabet="0159.:,GBMTHAx*- amdnvi\u00e9", max_size=12))
def test_what_we_take_dstack_takes_too(text):
    try:
        ours = Gpu.parse(text)
    except SpecError:
        return
    assert our_meaning(ours) == meaning(dstack_gpu(text)) == meaning(dstack_gpu(str(ours)))


def test_the_usual_spelling():
    assert str(Gpu.parse("8 : 80gb : h100,a100 : NVIDIA")) == "nvidia:h100,a100:80GB:8"
    assert str(Gpu.parse(8)) == "8"
    assert Gpu.parse("24GB..40GB:2") == Gpu(memory="24GB..40GB", count=CountRange(2, 2))


@pytest.mark.parametrize("text", ["8", "8..", "..8", "2..8", "x86:8..", "arm:4", "X86:2", "8:arm", "x86"])
def test_a_cpu_means_to_dstack_what_it_means_to_us(text):
    read = TypeAdapter(CPUSpec).validate_python
    assert read(cpu(text)) == read(text)


@pytest.mark.parametrize(
    ("gpu", "vendor"),
    [
        (None, "nvidia"), ("80GB:8", "nvidia"), ("H100:8", "nvidia"), ("mi300x,MI325X:8", "amd"),
        ("amd:192GB:8", "amd"), ("AMD:MI300X:8", "amd"), ("tpu:8", "google"), ("intel:gaudi2:8", "intel"),
    ],
)  # fmt: skip
def test_the_vendor_by_name_or_as_given(gpu, vendor):
    assert Cluster(name="one", gpu=gpu).vendor == vendor


@pytest.mark.parametrize("name", [gpu.name for gpu in gpuhunt.KNOWN_AMD_GPUS])
def test_each_gpu_of_amd_that_dstack_knows_is_amds(name):
    assert Gpu.parse(f"{name}:8").maker == Gpu.parse(f"{name.lower()}:8").maker == "amd"


def test_no_other_gpu_that_dstack_knows_is_amds():
    others = [gpu.name for gpu in gpuhunt.KNOWN_ACCELERATORS if gpu not in gpuhunt.KNOWN_AMD_GPUS]
    assert len(others) > 20
    assert {Gpu.parse(f"{name}:8").maker for name in others if name[0].isalpha()} == {"nvidia"}


@pytest.mark.parametrize(
    ("gpu", "message", "hint"),
    [
        ("H100,MI300X:8", "'H100,MI300X:8' mixes GPUs of AMD with others, and no image runs on both", "one vendor"),
        ("nvidia:MI300X:8", "'nvidia:MI300X:8': MI300X is not made by nvidia", "leave the vendor out"),
        ("amd:H100:8", "'amd:H100:8': H100 is not made by amd", "leave the vendor out"),
    ],
)  # fmt: skip
def test_vendors_that_contradict_the_names_are_refused(gpu, message, hint):
    with pytest.raises(SpecError) as caught:
        Cluster(name="one", gpu=gpu)
    assert caught.value.message == f"Cluster.gpu: {message}"
    assert hint in (caught.value.hint or "")
