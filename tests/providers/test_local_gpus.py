"""GPUs of this machine against those that a cluster asks for, by what nvidia-smi prints."""

from pathlib import Path

import pytest

from cloudrl.errors import CapacityError
from cloudrl.protocol.report import GpuUsage
from cloudrl.providers.local.gpus import gpus_here, is_meant
from cloudrl.spec import Cluster
from cloudrl.spec.gpu import Gpu

H100, H200, A100_40 = ("NVIDIA H100 80GB HBM3", 81559), ("NVIDIA H200", 143771), ("NVIDIA A100-PCIE-40GB", 40960)
L40S, A10, T4 = ("NVIDIA L40S", 46068), ("NVIDIA A10", 23028), ("Tesla T4", 15360)
RTX, A6000 = ("NVIDIA GeForce RTX 4090", 24564), ("NVIDIA RTX A6000", 49140)


@pytest.mark.parametrize(
    ("wanted", "card"),
    [
        ("H100:1", H100), ("h100:80GB:1", H100), ("80GB:1", H100), ("80GB..:1", H100), ("A100,H100:1", H100),
        ("80GB..:1", H200), ("H200:141GB:1", H200), ("A100:40GB:1", A100_40), ("..48GB:1", L40S), ("L40S:48GB", L40S),
        ("A10:24GB", A10), ("16GB", T4), ("T4", T4), ("RTX4090", RTX), ("4090", RTX), ("A6000:48GB", A6000),
        ("RTXA6000", A6000), ("1", H100), ("nvidia:1", H100), ("H100", ("", None)), ("H100", ("", 81559)),
    ],
)  # fmt: skip
def test_the_card_is_meant(wanted: str, card: tuple[str, int | None]) -> None:
    assert is_meant(Gpu.parse(wanted), GpuUsage(0, card[0], memory_total_mib=card[1]))


@pytest.mark.parametrize(
    ("wanted", "card"),
    [
        ("A100:1", H100), ("H10", H100), ("L40", L40S), ("L4", L40S), ("A10", A100_40), ("A100:80GB", A100_40),
        ("80GB", H200), ("96GB..", H100), ("..40GB", H100), ("MI300X", H100), ("H100:40GB", ("", 81559)),
    ],
)  # fmt: skip
def test_another_card_is_not(wanted: str, card: tuple[str, int | None]) -> None:
    assert not is_meant(Gpu.parse(wanted), GpuUsage(0, card[0], memory_total_mib=card[1]))


@pytest.fixture
def two_h100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a driver shows them."""
    name, memory = H100
    lines = [f"GPU {index}: {name} (UUID: GPU-{index})" for index in range(2)]
    rows = [f"{index}, {name}, 0, 4, {memory}, 70.13, 30" for index in range(2)]
    listed, asked = ("\n".join(f"echo '{line}'" for line in each) for each in (lines, rows))
    (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\nif [ "$1" = -L ]; then\n{listed}\nelse\n{asked}\nfi\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.io
@pytest.mark.usefixtures("two_h100")
def test_a_cluster_takes_some_of_what_is_here() -> None:
    assert gpus_here(Cluster(name="one", gpu="H100:1")) == 1
    assert gpus_here(Cluster(name="one", gpu="80GB:2")) == 2
    assert gpus_here(Cluster(name="one")) == 1


@pytest.mark.io
@pytest.mark.usefixtures("two_h100")
def test_other_cards_are_refused_with_what_is_here() -> None:
    with pytest.raises(CapacityError) as caught:
        gpus_here(Cluster(name="one", gpu="A100:80GB:2"))
    assert (
        caught.value.message
        == "the cluster asks for A100:80GB:2; this machine has 2 x NVIDIA H100 80GB HBM3 with 79.6 GiB"
    )
    assert caught.value.hint == "Take what is here: --gpu 2"
    with pytest.raises(CapacityError, match="nodes=1 with gpu=H100:3 need 3 GPUs; this machine has 2"):
        gpus_here(Cluster(name="one", gpu="H100:3"))
