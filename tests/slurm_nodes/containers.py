"""Docker and podman on nodes: their configuration, and an image of this machine's own programs.

The image has the names of users, empty folders and a mark; `oci_runtime.py` puts /usr and this Python into its
containers. So it is imported in no time, and nothing is asked of a registry.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from pathlib import Path

from .config import File
from .gpus import Gpus

IMAGE = "lab/verl:latest"
_RUNTIME = "/opt/lab/runtime"
TAR = "/opt/lab/image.tar"
_COPIED = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "alternatives", "ssl", "os-release")
_EMPTY = ("usr", "etc", "var", "dev", "proc", "sys", "run", "var/tmp", "opt", "home", "root", "mnt", "tmp")
_DOCKERD = f"""\
#!/bin/sh
echo 1 >/proc/sys/net/ipv4/ip_forward
dockerd --iptables=false --ip6tables=false --bridge=none --ip-forward=false --storage-driver overlay2 \
    --add-runtime lab={_RUNTIME} --default-runtime lab --shutdown-timeout 2 >/var/log/dockerd.log 2>&1 &
podman image exists {IMAGE} || podman import --quiet {TAR} {IMAGE} >/dev/null
for i in $(seq 400); do
    if test -S /run/docker.sock && docker version >/dev/null 2>&1; then
        docker image inspect {IMAGE} >/dev/null 2>&1 || docker import {TAR} {IMAGE} >/dev/null
        exit
    fi
    sleep 0.05
done
cat /var/log/dockerd.log
exit 1
"""
_CONTAINERS_CONF = f"""\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "lab"
[network]
network_backend = "netavark"
[engine.runtimes]
lab = ["{_RUNTIME}"]
"""
_STORAGE_CONF = """\
[storage]
driver = "overlay"
runroot = "{runroot}"
graphroot = "{graphroot}"
"""
STORES = ("docker", "containers", "rootless")  # in /var/lib, on a file system that overlay accepts
START = "/opt/lab/start-containers"


def files(gpus: Gpus, users: list[str]) -> dict[str, File]:
    """What a node with docker and podman has, beside the image."""
    ranges = "".join(f"{name}:{100000 + index * 65536}:65536\n" for index, name in enumerate(users))
    runtime = Path(__file__).with_name("oci_runtime.py").read_text()
    found: dict[str, File] = {
        _RUNTIME: File(f"#!{sys.executable} -IS\n{runtime}", 0o755),
        "/opt/lab/folders": File("\n".join(program_folders()) + "\n"),
        "/etc/subuid": File(ranges),
        "/etc/subgid": File(ranges),
        START: File(_DOCKERD, 0o755),
        "/etc/containers/containers.conf": File(_CONTAINERS_CONF),
        "/etc/containers/storage.conf": File(storage_conf("root")),
    }
    if gpus.count and gpus.vendor == "nvidia":
        found["/usr/bin/nvidia-container-runtime-hook"] = File("#!/bin/sh\n", 0o755)  # docker has --gpus where it is
        found["/etc/cdi/nvidia.json"] = File(_cdi(gpus))  # podman run --device nvidia.com/gpu=all
    return found


def storage_conf(user: str) -> str:
    """The text of storage.conf: root's of a node, or a user's own, in ~/.config/containers."""
    if user == "root":
        return _STORAGE_CONF.format(runroot="/run/containers/storage", graphroot="/var/lib/containers/storage")
    return _STORAGE_CONF.format(runroot=f"/run/rootless/{user}", graphroot=f"/var/lib/rootless/{user}")


def left_on(root: Path) -> list[Path]:
    """What a node whose files are in `root` has of containers, also of those that have ended."""
    folders = ("docker/containers", "containers/storage/overlay-containers", "rootless/*/overlay-containers")
    return [path for folder in folders for path in root.glob(f"var/lib/{folder}/*") if path.is_dir()]


def write_image(path: Path) -> None:
    """Write the image as a root file system."""
    with tarfile.open(path, "w") as tar:
        for name in _EMPTY:
            tar.addfile(_entry(name, tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755))
        for name in ("bin", "sbin", "lib", "lib64"):
            link = _entry(name, tarfile.SYMTYPE, 0o777)
            link.linkname = f"usr/{name}"
            tar.addfile(link)
        for name in _COPIED:
            if os.path.lexists(f"/etc/{name}"):
                tar.add(f"/etc/{name}", f"etc/{name}")
        tar.addfile(_entry(".lab-image", tarfile.REGTYPE, 0o644), io.BytesIO())  # the mark of `oci_runtime.py`


def program_folders() -> list[str]:
    """Folders of the machine with programs: /usr, this Python, what it imports, and this repository."""
    python = Path(os.path.realpath(sys.executable)).parent.parent
    repository = Path(__file__).resolve().parents[2]
    imported = map(os.path.abspath, filter(os.path.isdir, sys.path))
    wanted = {"/usr", sys.prefix, sys.base_prefix, str(python), str(repository), *imported}
    return sorted(path for path in wanted if not any(path.startswith(f"{other}/") for other in wanted))


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def _cdi(gpus: Gpus) -> str:
    def device(name: str, paths: list[str]) -> dict[str, object]:
        return {"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}}

    common, each = gpus.devices[: -gpus.count], gpus.devices[-gpus.count :]
    devices = [device(str(number), [*common, path]) for number, path in enumerate(each)]
    devices.append(device("all", gpus.devices))
    return json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})
