"""A task of dstack: its commands, and its resources as fields of a cluster.

Source: dstack 0.22.5, core/models/configurations.py (TaskConfiguration).
"""

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from cloudrl.errors import SpecError
from cloudrl.scripts.sandbox import SCRATCH
from cloudrl.scripts.task_file import Reader, TaskFile, listed
from cloudrl.spec.volume import parse_mount

_OWN = frozenset(
    [
        "backends",
        "regions",
        "availability_zones",
        "instance_types",
        "reservation",
        "spot_policy",
        "retry",
        "max_duration",
        "stop_duration",
        "max_price",
        "creation_policy",
        "idle_duration",
        "utilization_policy",
        "startup_order",
        "stop_criteria",
        "schedule",
        "fleets",
        "tags",
        "priority",
        "registry_auth",
    ]
)
_DROPPED = {
    "type": "", "name": "", "nodes": "", "commands": "", "env": "", "image": "", "resources": "", "volumes": "",
    "ports": "", "groups": "", "files": "",
    "python": "verl's image has its Python",
    "nvcc": "verl's image has what it needs",
    "privileged": "not needed: --set dstack.privileged=true if it is",
    "repos": "code is sent as it is in a folder: --working-dir DIR",
    "working_dir": "a job starts in what --working-dir sends",
    "docker": "a container of dstack's that runs Docker; not needed",
    "shell": "cloudrl runs no command of this file on the nodes",
    "entrypoint": "the agent starts in its place",
    "user": "--set user=NAME",
    "home_dir": "the image's own",
    "single_branch": "code is sent as it is in a folder: --working-dir DIR",
}  # fmt: skip


class DstackTask(Reader):
    """Reads one."""

    def read(self) -> TaskFile:
        """What the file says, and what became of each of its fields."""
        values = self.values
        groups = values.get("groups")
        groups = [each for each in groups if isinstance(each, Mapping)] if isinstance(groups, list) else []
        if values.get("type") != "task":
            self.unknown(f"type: {values.get('type')}", "cloudrl starts tasks: clusters for jobs")
        self._nodes(groups)
        self.read_env(values.get("env"), "env")
        self.image(values.get("image"))
        resources = values.get("resources") or (groups[0].get("resources") if groups else None)
        self._resources(resources if isinstance(resources, Mapping) else {})
        self._volumes(values.get("volumes"))
        self._files(values.get("files"))
        ports = [port for each in (values, *groups) for port in listed(each.get("ports"))]
        self.ports(ports)
        for name, value in values.items():
            if name in _OWN:
                self.taken(name, f"dstack.{name} of the cluster")
                self.cluster.setdefault("dstack", {})[name] = value
            elif name not in _DROPPED:
                self.unknown(name, "cloudrl has nothing for it; what dstack knows: --set dstack.FIELD=VALUE")
            elif _DROPPED[name]:
                self.dropped(name, _DROPPED[name])
        commands = [str(each) for each in listed(values.get("commands"))]
        commands += [str(each) for group in groups[:1] for each in listed(group.get("commands"))]
        for group in groups[1:]:
            for command in listed(group.get("commands")):
                self.dropped(str(command).strip()[:80], "a command of the other nodes; the agents run on every node")
        return TaskFile(
            "dstack",
            "\n".join(commands) + "\n",
            {**self.env, **self._own()},
            tuple(self.wanted),
            self.cluster,
            None,
            self.mounted,
            tuple(self.lines),
        )

    def _own(self) -> dict[str, str]:
        nodes = int(self.cluster.get("nodes", 1))
        gpus = re.search(r"(?:^|:)(\d+)$", str(self.cluster.get("gpu", "")))
        own = {
            "DSTACK_NODE_RANK": "0", "DSTACK_NODES_NUM": str(nodes), "DSTACK_MASTER_NODE_IP": "10.0.0.1",
            "DSTACK_NODES_IPS": "\n".join(f"10.0.0.{1 + rank}" for rank in range(nodes)), "DSTACK_RUN_NAME": "run",
            "DSTACK_MPI_HOSTFILE": f"{SCRATCH}/hostfile",
        }  # fmt: skip
        if gpus:
            own |= {"DSTACK_GPUS_PER_NODE": gpus[1], "DSTACK_GPUS_NUM": str(int(gpus[1]) * nodes)}
        return own

    def _nodes(self, groups: list[Mapping[str, Any]]) -> None:
        nodes = self.values.get("nodes")
        if groups:
            counts = [each.get("nodes", 1) for each in groups]
            kinds = [{k: v for k, v in (each.get("resources") or {}).items() if k != "shm_size"} for each in groups]
            if all(isinstance(count, int) for count in counts):
                total = sum(counts)
                same = "" if all(kind == kinds[0] for kind in kinds) else "; the resources are those of the first group"
                why = f"nodes: {total}, all alike: the agents make the first of them the head{same}"
                self.taken("groups", why, nodes=total)
        elif isinstance(nodes, int):
            self.taken(f"nodes: {nodes}", f"nodes: {nodes}", nodes=nodes)
        elif nodes is not None:
            self.unknown(f"nodes: {nodes}", "a cluster has a fixed number of nodes: --nodes N")

    def _resources(self, resources: Mapping[str, Any]) -> None:
        for name, value in resources.items():
            target = {"gpu": "gpu", "cpu": "cpu", "memory": "memory", "disk": "disk", "shm_size": "shm_size"}.get(name)
            text = _gpu_text(value) if name == "gpu" and isinstance(value, Mapping) else value
            if name == "disk" and isinstance(value, Mapping):
                text = value.get("size")
            if target is None or text is None or isinstance(text, Mapping):
                self.unknown(f"resources.{name}", "cloudrl has gpu, cpu, memory, disk and shm_size")
            else:
                kept = str(text) if name in ("gpu", "cpu") else _with_unit(str(text))
                self.taken(f"resources.{name}: {text}", f"{target} of the cluster", **{target: kept})

    def _volumes(self, volumes: Any) -> None:
        kept = []
        for each in listed(volumes):
            try:
                kept.append(str(parse_mount(dict(each) if isinstance(each, Mapping) else each)))
                self.taken(f"volumes: {kept[-1]}", "volumes of the cluster")
            except SpecError as error:
                self.unknown(f"volumes: {each}", error.message)
        if kept:
            self.cluster["volumes"] = kept

    def _files(self, files: Any) -> None:
        """Files and folders of this machine: `./local`, `./local:/path`, or a mapping with `local_path` and `path`."""
        for each in listed(files):
            local, _, path = str(each).partition(":")
            if isinstance(each, Mapping):
                local, path = str(each.get("local_path", "")), str(each.get("path", ""))
            self.local_file(f"files: {local}", path or posixpath.join("/workflow", local), local)


def _with_unit(size: str) -> str:
    """A size or a range of them; what has no unit is in GB to dstack."""
    bounds = (bound.strip() for bound in size.split(".."))
    return "..".join(f"{bound}GB" if bound[-1:].isdigit() else bound for bound in bounds)


def _gpu_text(value: Mapping[str, Any]) -> str | None:
    name, memory, count = value.get("name"), value.get("memory"), value.get("count")
    names = ",".join(map(str, name)) if isinstance(name, list) else name
    parts = [str(each) for each in (value.get("vendor"), names, memory, count) if each is not None]
    return ":".join(parts) or None
