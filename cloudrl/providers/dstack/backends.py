"""What the backends of dstack can do for a cluster. Read in dstack 0.22.5, core/backends/*/compute.py: its mixins.

`docs/clouds.md` shows this table; a test compares both, and compares the table with dstack's own classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Backend:
    """One backend.

    Attributes:
        several_nodes: whether a cluster of several nodes runs there (ComputeWithMultinodeSupport).
        instance_volumes: whether containers see a folder of their host (ComputeWithInstanceVolumesSupport).
        network_volumes: whether dstack makes disks there that outlive machines (ComputeWithVolumeSupport).
        before_runs: whether a fleet rents machines before a run needs them (ComputeWithCreateInstanceSupport).
        network: what dstack does for a fast network between nodes; "" for nothing.
        note: what else differs; "" for nothing.
    """

    several_nodes: bool = False
    instance_volumes: bool = True
    network_volumes: bool = False
    before_runs: bool = True
    network: str = ""
    note: str = ""


BACKENDS = {
    "remote": Backend(
        several_nodes=True, before_runs=False, network="whatever the hosts have in /dev/infiniband",
        note="your own hosts (SSH fleets); no price",
    ),
    "amddevcloud": Backend(note="AMD GPUs"),
    "aws": Backend(
        several_nodes=True, network_volumes=True,
        network="EFA where the machine type has it; verl's image has no plug-in for it, so NCCL takes TCP",
    ),
    "azure": Backend(several_nodes=True),
    "cloudrift": Backend(),
    "crusoe": Backend(
        several_nodes=True, network="placement in one InfiniBand partition",
        note="Docker is on the NVMe disks, `/var/lib/cloudrl` on the smaller disk of the system: `--volume "
        "/data/checkpoints:/checkpoints`",
    ),
    "datacrunch": Backend(note="the former name of verda"),
    "daytona": Backend(instance_volumes=False, network_volumes=True, before_runs=False),
    "digitalocean": Backend(),
    "gcp": Backend(
        several_nodes=True, network_volumes=True,
        network="GPUDirect-TCPX and TCPXO on A3, RDMA on A3 Ultra and A4 with `roce_vpcs`; verl's image has no plug-in "
        "for TCPX",
        note="A3 runs Container-Optimized OS, where `/` is read-only",
    ),
    "hotaisle": Backend(note="AMD GPUs"),
    "jarvislabs": Backend(several_nodes=True),
    "kubernetes": Backend(
        several_nodes=True, network_volumes=True, before_runs=False,
        network="what a privileged pod sees: `dstack.privileged`",
        note="no price; a `disk` becomes a request of the pod",
    ),
    "lambda": Backend(),
    "lium": Backend(instance_volumes=False, network_volumes=True, before_runs=False),
    "nebius": Backend(several_nodes=True, network="placement in one InfiniBand fabric"),
    "oci": Backend(several_nodes=True),
    "runpod": Backend(several_nodes=True, instance_volumes=False, network_volumes=True, before_runs=False),
    "seeweb": Backend(several_nodes=True),
    "slurm": Backend(several_nodes=True, instance_volumes=False, before_runs=False, note="no price"),
    "vastai": Backend(instance_volumes=False, before_runs=False),
    "verda": Backend(),
    "vultr": Backend(several_nodes=True),
}  # fmt: skip
"""By dstack's name (core/models/backends/base.py: BackendType)."""

SEE_CLOUDS = "What each backend can do: docs/clouds.md"


def cannot_mount(backends: Iterable[str]) -> tuple[str, ...]:
    """Those of the backends whose containers see no folder of their host; one that is not in the table can."""
    return tuple(name for name in backends if name in BACKENDS and not BACKENDS[name].instance_volumes)


def single_node_only(backends: Iterable[str]) -> tuple[str, ...]:
    """Those of the backends that run clusters of one node only; one that is not in the table runs larger ones."""
    return tuple(name for name in backends if name in BACKENDS and not BACKENDS[name].several_nodes)
