"""Which wish of a cluster a machine does not meet, with both numbers, by dstack's own models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gpuhunt
import pytest
from dstack._internal.core.backends.base.offers import requirements_to_query_filter
from dstack._internal.core.models.instances import Resources

from cloudrl.providers.dstack.machine_states import Instance
from cloudrl.providers.dstack.mismatches import describe, mismatches
from cloudrl.providers.dstack.server import parse
from cloudrl.providers.dstack.task import to_dstack
from cloudrl.spec import Cluster

H100 = {"name": "H100", "memory_mib": 80 << 10, "vendor": "nvidia"}


def machine(name: str = "gpu-1", **changes: Any) -> Instance:
    """A host of one's own with eight H100, or with other numbers."""
    of_instance = {"status": "idle", "backend": "remote", "region": "remote", "price": 0.0}
    given = {key: changes.pop(key, value) for key, value in of_instance.items()}
    blocks = {key: changes.pop(key, value) for key, value in (("total_blocks", 1), ("busy_blocks", 0))}
    disk = {"size_mib": changes.pop("disk_gb", 4000) << 10}
    fields = {"cpus": 208, "memory_mib": 1900 << 10, "gpus": [H100] * 8, "spot": False, "cpu_arch": "x86", **changes}
    kind = SimpleNamespace(resources=Resources.model_validate({**fields, "disk": disk}))
    return Instance(name, hostname=name, resources="", answer=SimpleNamespace(instance_type=kind, **blocks), **given)  # type: ignore[arg-type]


def task(**fields: Any) -> Any:
    return parse(to_dstack(Cluster(**{"name": "lab", "nodes": 2, "gpu": "80GB..:8", **fields})))


@pytest.mark.parametrize(
    ("asked", "has", "text", "option"),
    [
        ({"disk": "900GB.."}, {"disk_gb": 800}, "disk 800GB, asked for 900GB..", "--set disk=800GB.."),
        ({}, {"disk_gb": 80}, "disk 80GB, asked for 100GB..", "--set disk=80GB.."),
        ({"memory": "2TB.."}, {}, "memory 1900GB, asked for 2048GB..", "--set memory=1900GB.."),
        ({"cpu": "256.."}, {}, "CPUs 208, asked for 256..", "--set cpu=208.."),
        ({}, {"cpu_arch": "arm"}, "CPU architecture arm, asked for x86", "--set cpu=arm:2.."),
        ({}, {"gpus": [H100] * 4}, "4 GPUs, asked for 8", "--gpu H100:4"),
        ({}, {"gpus": [{**H100, "memory_mib": 40 << 10}] * 8}, "GPU memory 40GB, asked for 80GB..", "--gpu H100:8"),
        ({"gpu": "H200:8"}, {}, "GPU H100, asked for H200", "--gpu H100:8"),
        ({}, {"gpus": [{"name": "MI300X", "memory_mib": 192 << 10, "vendor": "amd"}] * 8},
         "GPUs of amd, asked for nvidia", "--gpu amd:8"),
        ({}, {"gpus": []}, "no GPUs, asked for 80GB..:8", "Machines with GPUs, or --gpu 0 for a cluster without"),
        ({"shm_size": "512GB"}, {"memory_mib": 256 << 10}, "memory 256GB, asked for 512GB of it as /dev/shm",
         "--set shm_size=128GB"),
        ({"dstack": {"backends": ["aws"]}}, {"backend": "gcp"}, "backend gcp, asked for aws",
         "--set dstack.backends=[gcp]"),
        ({"dstack": {"regions": ["us-east-1"]}}, {"region": "eu"}, "region eu, asked for us-east-1",
         "--set dstack.regions=[eu]"),
        ({"dstack": {"max_price": 50}}, {"price": 98.0}, "price $98.00/h, asked for at most $50.00",
         "--set dstack.max_price=..."),
        ({}, {"total_blocks": 8, "busy_blocks": 1}, "blocks: 1 of 8 in use, asked for all",
         "Wait, or stop what runs there: dstack ps"),
        ({}, {"status": "busy", "busy_blocks": 1}, "in use by another run", "Wait, or stop what runs there: dstack ps"),
    ],
)  # fmt: skip
def test_the_wish_that_fails(asked: dict[str, Any], has: dict[str, Any], text: str, option: str) -> None:
    found = list(mismatches(task(**asked), machine(**has), nodes=2))
    assert [(each.text, each.option) for each in found] == [(text, option)]
    assert list(mismatches(task(), machine(), nodes=2)) == []


@pytest.mark.parametrize("disk_gb", [99, 100, 800, 1700, 3500])
@pytest.mark.parametrize("wish", [None, "900GB..", "2TB..", "..1TB"])
def test_disks_as_dstack_compares_them(disk_gb: int, wish: str | None) -> None:
    asked = task(disk=wish)
    requirements: Any = SimpleNamespace(
        resources=asked.resources, max_price=None, spot=None, reservation=None, multinode=True
    )
    item = gpuhunt.CatalogItem(
        provider="any", instance_name="any", location="any", price=0.0, cpu=208, memory=1900, disk_size=disk_gb,
        spot=False, cpu_arch=gpuhunt.CPUArchitecture.X86, gpu_vendor=gpuhunt.AcceleratorVendor.NVIDIA,
        gpu_name="H100", gpu_memory=80, gpu_count=8,
    )  # fmt: skip
    fits = gpuhunt.matches(item, requirements_to_query_filter(requirements))
    assert (list(mismatches(asked, machine(disk_gb=disk_gb), nodes=2)) == []) is fits


def test_hosts_with_the_same_fault_are_one_entry() -> None:
    machines = [machine("a", disk_gb=800), machine("b", disk_gb=800), machine("c", gpus=[H100]), machine("d")]
    text, options = describe(task(disk="900GB.."), machines, nodes=2)
    assert text == "a, b: disk 800GB, asked for 900GB.. | c: 1 GPU, asked for 8"
    assert options == ("--set disk=800GB..", "--gpu H100:1")
    assert describe(task(), [machine()], nodes=2) == ("", ())
