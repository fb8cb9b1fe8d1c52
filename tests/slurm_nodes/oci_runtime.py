"""What docker and podman on a node run as their OCI runtime: runc, with three things added to a container.

The image `IMAGE` holds no program: /usr and this Python are bound into its containers, read-only, from the node. Where
a GPU vendor's hook would add device files, this adds the node's. Capabilities and limits that this machine itself does
not have are left out, since runc would fail for them. Standard library only.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

RUNC = "/usr/sbin/runc" if os.path.exists("/usr/sbin/runc") else "/usr/bin/runc"
FOLDERS = Path("/opt/lab/folders")  # on a node: what is bound into containers of the image, one path a line
MARK = ".lab-image"  # in the root of the image
_CAP_SYS_RESOURCE = 24


def main(words: list[str]) -> None:
    """Change the specification that the command line names, if it names one, and become runc."""
    for index, word in enumerate(words):
        name, has_value, value = word.partition("=")
        path = value if has_value else next(iter(words[index + 1 :]), "")
        if name in ("--bundle", "-b"):
            _change(Path(path) / "config.json", Path(path))
        elif name in ("--process", "-p"):
            _change(Path(path), None)
    os.execv(RUNC, ["runc", *words])


def _change(path: Path, bundle: Path | None) -> None:
    if not path.is_file():
        return
    spec = json.loads(path.read_text())
    _limit(spec.get("process", spec))
    if bundle is not None:
        root = bundle / spec["root"]["path"]
        if (root / MARK).exists():
            spec["mounts"] += [_bind(folder) for folder in FOLDERS.read_text().splitlines()]
        _add_gpus(spec)
    path.write_text(json.dumps(spec))


def _bind(folder: str) -> dict[str, Any]:
    return {"destination": folder, "type": "bind", "source": folder, "options": ["rbind", "ro"]}


def _limit(process: dict[str, Any]) -> None:
    """Ask for nothing that this machine refuses."""
    mask = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd"))
    if not int(mask.split()[1], 16) >> _CAP_SYS_RESOURCE & 1:
        for names in (process.get("capabilities") or {}).values():
            names[:] = [name for name in names if name != "CAP_SYS_RESOURCE"]
    for limit in process.get("rlimits") or []:
        most = resource.getrlimit(getattr(resource, limit["type"]))[1]
        if most != resource.RLIM_INFINITY:
            limit["hard"] = min(limit["hard"], most)
            limit["soft"] = min(limit["soft"], most)


def _add_gpus(spec: dict[str, Any]) -> None:
    """What NVIDIA's hook does for `docker run --gpus`: the device files of NVIDIA_VISIBLE_DEVICES."""
    variables = dict(each.split("=", 1) for each in spec["process"]["env"])
    wanted = variables.get("NVIDIA_VISIBLE_DEVICES", "")
    if not wanted or "nvidia" not in json.dumps(spec.get("hooks") or {}):
        return
    for path in sorted(Path("/dev").glob("nvidia*")):
        number = path.name.removeprefix("nvidia")
        if not number.isdigit() or wanted == "all" or number in wanted.split(","):
            device = {"path": str(path), "type": "c", "major": 1, "minor": 3, "fileMode": 0o666, "uid": 0, "gid": 0}
            spec["linux"].setdefault("devices", []).append(device)


main(sys.argv[1:])
