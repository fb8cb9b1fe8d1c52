"""A task of SkyPilot: its `setup` and `run`, and its resources as fields of a cluster.

Source: SkyPilot 0.10, docs/source/reference/yaml-spec.rst.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from cloudrl.scripts.task_file import Reader, TaskFile, listed, on_nodes

_OF_DSTACK: Mapping[str, Callable[[Any], tuple[str, Any]]] = {
    "use_spot": lambda value: ("spot_policy", "spot" if value else "on-demand"),
    "region": lambda value: ("regions", [str(value)]),
    "zone": lambda value: ("availability_zones", [str(value)]),
    "instance_type": lambda value: ("instance_types", [str(value)]),
}
"""Resources that dstack alone knows -> a field of its section."""
_DROPPED = {
    "autostop": "--set down_when_idle=TIME",
    "job_recovery": "dstack starts a lost cluster again: --set dstack.retry=true",
    "network_tier": "the network of the machines that are rented",
    "disk_tier": "the disk of the machines that are rented",
    "labels": "--set dstack.tags={NAME: VALUE}",
}


class SkyTask(Reader):
    """Reads one."""

    def read(self) -> TaskFile:
        """What the file says, and what became of each of its fields."""
        values = self.values
        nodes = values.get("num_nodes")
        if isinstance(nodes, int):
            self.taken(f"num_nodes: {nodes}", f"nodes: {nodes}", nodes=nodes)
        for name in ("envs", "secrets"):
            self.read_env(values.get(name), name)
        resources = values.get("resources")
        self._resources(dict(resources) if isinstance(resources, Mapping) else {})
        self._mounts(values.get("file_mounts"))
        for name, value in (values.get("volumes") or {}).items() if isinstance(values.get("volumes"), Mapping) else ():
            self.unknown(f"volumes: {name}", f"a volume {value}: `cloudrl volume create`, then --volume NAME:{name}")
        work = values.get("workdir")
        if isinstance(work, str):
            self.taken(f"workdir: {work}", "--working-dir")
        known = {
            "name",
            "num_nodes",
            "envs",
            "secrets",
            "resources",
            "file_mounts",
            "volumes",
            "workdir",
            "setup",
            "run",
        }
        if shared := re.search(r"--shm-size[= ]'?(\d+)[gG]", str(values.get("config"))):
            self.taken(f"config: {shared[0]}", "shm_size of the cluster", shm_size=f"{shared[1]}GB")
        for name in values:
            if name not in known:
                self.unknown(name, "cloudrl has nothing for it")
        # each in a shell of its own, so that a folder or a variable of the one is not that of the other
        parts = [f"(\n{values[name]}\n)" for name in ("setup", "run") if values.get(name)]
        own = {
            "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1", "SKYPILOT_TASK_ID": "task",
            "SKYPILOT_NUM_NODES": str(self.cluster.get("nodes", 1)), "SKYPILOT_CLUSTER_INFO": "{}",
        }  # fmt: skip
        if count := re.search(r"(?:^|:)(\d+)$", str(self.cluster.get("gpu", ""))):
            own["SKYPILOT_NUM_GPUS_PER_NODE"] = count[1]
        return TaskFile(
            "SkyPilot", "\n".join(parts) + "\n", {**self.env, **own}, tuple(self.wanted), self.cluster,
            work if isinstance(work, str) else None, self.mounted, tuple(self.lines),
        )  # fmt: skip

    def _resources(self, resources: dict[str, Any]) -> None:
        for name in ("any_of", "ordered"):
            if isinstance(resources.get(name), list) and resources[name]:
                choices = [each for each in resources.pop(name) if isinstance(each, Mapping)]
                self.unknown(f"resources.{name}", "the first of them; a list of GPUs: gpu: A100,H100:8")
                resources = {**resources, **(choices[0] if choices else {})}
        for name, value in resources.items():
            self._resource(name, value)

    def _resource(self, name: str, value: Any) -> None:
        shown = f"resources.{name}: {value}"
        if name in _OF_DSTACK:
            self._section(shown, *_OF_DSTACK[name](value))
        elif name in ("accelerators", "gpus"):
            self._accelerators(shown, value)
        elif name in ("cpus", "memory", "disk_size"):
            self._size(shown, name, str(value))
        elif name in ("cloud", "infra"):
            self._place(shown, str(value))
        elif name == "ports":
            self.ports(value)
        elif name == "image_id" and str(value).startswith("docker:"):
            self.image(value)
        elif name in _DROPPED:
            self.dropped(shown, _DROPPED[name])
        else:
            self.unknown(shown, "cloudrl has no field for it")

    def _section(self, shown: str, name: str, value: Any) -> None:
        self.taken(shown, f"dstack.{name}: {value}")
        self.cluster.setdefault("dstack", {})[name] = value

    def _size(self, shown: str, name: str, value: str) -> None:
        """`32+` and `512+` of SkyPilot, with GB for all but CPUs; a disk is as large as it is asked for, or larger."""
        number = re.sub(r"(GB?|i|x)*\+?$", "", value)
        field, unit = {"cpus": ("cpu", ""), "memory": ("memory", "GB"), "disk_size": ("disk", "GB")}[name]
        written = f"{number}{unit}{'..' if value.endswith('+') or name == 'disk_size' else ''}"
        self.taken(shown, f"{field}: {written}", **{field: written})

    def _place(self, shown: str, value: str) -> None:
        cloud, _, region = value.partition("/")
        if cloud in ("k8s", "kubernetes"):
            cloud, region = "kubernetes", ""
        self._section(shown, "backends", [cloud])
        if region and region != "*":
            self._section(shown, "regions", [region])

    def _accelerators(self, shown: str, value: Any) -> None:
        pairs_of = value.items() if isinstance(value, Mapping) else ()
        choices = [f"{name}:{count}" for name, count in pairs_of] or listed(value)
        pairs = [str(each).partition(":")[::2] for each in choices]
        counts = list(dict.fromkeys(count or "1" for _, count in pairs))
        if not pairs:
            return
        count = counts[0]
        names = [re.sub(r"[-_]?(\d+GB)$", r":\1", name) for name, each in pairs if (each or "1") == count]
        memory = {name.partition(":")[2] for name in names}
        plain = ",".join(dict.fromkeys(name.partition(":")[0] for name in names))
        size = f":{next(iter(memory))}" if memory != {""} and len(memory) == 1 else ""
        gpu = f"{plain}{size}:{int(float(count))}"
        more = "" if len(counts) == 1 else "; those with another number of GPUs are left out"
        self.taken(shown, f"gpu: {gpu}{more}", gpu=gpu)

    def _mounts(self, mounts: Any) -> None:
        for place, given in mounts.items() if isinstance(mounts, Mapping) else ():
            fields = given if isinstance(given, Mapping) else {"source": given}
            source = str(fields.get("source") or "")
            name = str(fields.get("name") or source)
            text = f"file_mounts: {place}: {name}"
            if source.startswith("hf://"):
                self._of_hub(text, str(place), source.removeprefix("hf://").strip("/"))
            elif "://" in name or "name" in fields:
                self._bucket(text, on_nodes(str(place)), name)
            else:
                self.local_file(text, str(place), source)

    def _of_hub(self, text: str, place: str, name: str) -> None:
        field = "data" if name.startswith("datasets/") else "models"
        named = "/".join(name.removeprefix("datasets/").partition("@")[0].split("/")[:2])
        self.cluster[field] = [*self.cluster.get(field, []), named]
        self.taken(text, f"{field}: [{named}]; overrides that name {place} have to name {named}")

    def _bucket(self, text: str, place: str, name: str) -> None:
        """A bucket becomes network volumes, one for each node: most clouds attach a disk to one machine at a time."""
        slug = re.sub(r"[^a-z0-9]+", "-", name.partition("://")[2].partition("/")[0] or name.lower()).strip("-")
        nodes = int(self.cluster.get("nodes", 1))
        volume = f"{slug}-${{{{ dstack.node_rank }}}}" if nodes > 1 else slug
        first = f"{slug}-0" if nodes > 1 else slug
        more = f" (and so on, to {slug}-{nodes - 1})" if nodes > 1 else ""
        create = f"cloudrl volume create {first} --backend NAME --region NAME --size 500GB{more}"
        copy = f"; it begins empty: --setup 'aws s3 sync {name} {place}'" if "://" in name else ""
        self.cluster["volumes"] = [*self.cluster.get("volumes", []), f"{volume}:{place}"]
        self.taken(text, f"volumes: a network volume in place of the bucket; make it once: {create}{copy}")
