"""Fast networks that NCCL is not going to use, in a file system that looks like each cloud's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudrl.node.fast_network import loads, unused_networks
from cloudrl.protocol.report import WarningKind


def machine(root: Path, **drivers: str) -> Path:
    """A machine with these RDMA devices, as device -> driver, and a container that has been given them."""
    for device, driver in drivers.items():
        folder = root / "sys/class/infiniband" / device / "device"
        folder.mkdir(parents=True)
        (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)
    if drivers:
        (root / "dev/infiniband").mkdir(parents=True)
        (root / "dev/infiniband/uverbs0").touch()
    return root


def warnings(root: Path, *libraries: str, **env: str) -> list[str]:
    found = unused_networks(env, root=root, loads=lambda name, _env: name in libraries)
    assert {each.kind for each in found} <= {WarningKind.NETWORK}
    return [f"{each}".removeprefix("warning: ") for each in found]


def test_a_machine_without_one(tmp_path: Path) -> None:
    assert warnings(tmp_path) == []


@pytest.mark.parametrize(
    ("drivers", "library", "remedy"),
    [
        ({"mlx5_0": "mlx5_core", "mlx5_1": "mlx5_core"}, "libibverbs.so.1", "apt-get install -y libibverbs1"),
        ({"rdmap16s27": "efa"}, "libnccl-net.so", "aws-ofi-nccl"),
    ],
    ids=["infiniband", "efa"],
)
def test_the_library_counts(tmp_path: Path, drivers: dict[str, str], library: str, remedy: str) -> None:
    root = machine(tmp_path, **drivers)
    [warning] = warnings(root)
    assert warning.startswith(", ".join(drivers))
    assert library in warning
    assert remedy in warning
    assert warnings(root, library) == []


def test_efa_needs_the_plugin_that_nccl_is_told_to_load(tmp_path: Path) -> None:
    root = machine(tmp_path, rdmap16s27="efa")
    assert warnings(root, "libnccl-net-ofi.so", NCCL_NET_PLUGIN="ofi") == []
    assert "libnccl-net-ofi.so" in warnings(root, "libnccl-net.so", NCCL_NET_PLUGIN="ofi")[0]


def test_devices_that_the_container_was_not_given(tmp_path: Path) -> None:
    """A pod of Kubernetes that is not privileged sees them in /sys, which is the node's."""
    root = machine(tmp_path, mlx5_0="mlx5_core")
    (root / "dev/infiniband/uverbs0").unlink()
    [warning] = warnings(root, "libibverbs.so.1")
    assert "no /dev/infiniband" in warning
    assert "--set dstack.privileged=true" in warning


@pytest.mark.parametrize(
    ("folder", "variables"),
    [
        ("usr/local/tcpx/lib64", "NCCL_GPUDIRECTTCPX_"),
        ("var/lib/tcpx/lib64", "NCCL_GPUDIRECTTCPX_"),
        ("var/lib/tcpxo/lib64", "nccl-env-profile.sh"),
    ],
    ids=["a3-high-by-dstack", "a3-high", "a3-mega"],
)
def test_google(tmp_path: Path, folder: str, variables: str) -> None:
    """dstack mounts the plug-in of A3 High elsewhere than the machine has it, and does not expand variables."""
    (tmp_path / folder).mkdir(parents=True)
    [warning] = warnings(tmp_path)
    assert warning.startswith(f"/{folder}: GPUDirect")
    assert f"echo /{folder} > /etc/ld.so.conf.d/gpudirect.conf && ldconfig" in warning
    assert "LD_LIBRARY_PATH" not in warning
    assert variables in warning
    assert warnings(tmp_path, "libnccl-net.so") == []


@pytest.mark.io
def test_the_loader_itself_is_asked() -> None:
    assert loads("libc.so.6", os.environ)
    assert not loads("libnccl-net-of-another.so", os.environ)
