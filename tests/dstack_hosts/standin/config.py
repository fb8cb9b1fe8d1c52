"""What a stand-in host is: written by the lab, read by everything on the host."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

PATH = Path("/etc/dstack-standin.json")  # on the host; a container is configured by its own spec
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAM = Path("/opt/standin/standin.pyz")  # what the server "downloads" as shim and runner
IMAGE = Path("/opt/standin/image")  # the machine's own root file system, which all images are


@dataclass(frozen=True)
class ImageConfig:
    """What is special about an image.

    Attributes:
        pull_s: seconds that a pull takes.
        pull_error: why it cannot be pulled, in Docker's words; empty if it can.
        sshd: whether it has one. The true shim installs one otherwise, which fails without a way out.
        python3: whether there is one on its PATH.
        path_first: put before PATH, instead of the host's own.
    """

    pull_s: float = 0.0
    pull_error: str = ""
    sshd: bool = True
    python3: bool = True
    path_first: str = ""


@dataclass(frozen=True)
class HostConfig:
    """One host.

    Attributes:
        name: its host name.
        address: its only IPv4 address, in `network_bits` of network.
        gateway: where packets for elsewhere go; nothing is behind it.
        hosts: /etc/hosts, name -> address.
        admin_key: public key that a fleet is made with.
        admin: the user that it belongs to, who may run anything as root without a password.
        version: what shim and runner say; the server compares it with its own.
        cpus: declared to the server, as are the next two and the GPUs; the machine need not have them.
        disk_bytes: free on the disk of Docker's root.
        system_disk_bytes: of the disk that folders for tasks are on, where Docker's root is on another one; 0 for one
            disk, of the size that the lab's own machine has.
        python: the interpreter of the stand-in.
        path_first: put before PATH in containers.
        gpus: how many it has, all of which only seem to be there (`gpus.py`).
        gpu_vendor: "nvidia" or "amd".
        gpu_name: as its driver calls it.
        gpu_memory_mib: of each.
        cuda: the newest CUDA that its driver can run, which its `nvidia-smi --version` says.
        binds: folders of the machine that an overlay would hide: home folders, other file systems. Read-only.
        images: those that are not like the machine's own root, by name.
        writable: the only folders in which tasks may make others, as on a host whose `/` is read-only; none for all.
        keys: public keys of root, as a cloud's user data give them.
        commands: what a cloud's user data run at the first boot.
    """

    name: str
    address: str
    gateway: str
    admin_key: str
    version: str
    python: str
    admin: str = "root"
    network_bits: int = 24
    hosts: dict[str, str] = field(default_factory=dict)
    cpus: int = 8
    memory_bytes: int = 32 << 30
    disk_bytes: int = 500 << 30
    system_disk_bytes: int = 0
    path_first: str = ""
    gpus: int = 0
    gpu_vendor: str = "nvidia"
    gpu_name: str = "NVIDIA H100 80GB HBM3"
    gpu_memory_mib: int = 81559
    cuda: str = "13.0"
    binds: list[str] = field(default_factory=list)
    images: dict[str, ImageConfig] = field(default_factory=dict)
    writable: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path = PATH) -> HostConfig:
        """Read what `save` wrote."""
        fields = json.loads(path.read_text())
        images = {name: ImageConfig(**each) for name, each in fields.pop("images").items()}
        return cls(images=images, **fields)
