"""The section `slurm` of a script for Slurm: what its nodes run the training in, and where its checkpoints are."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cloudrl.errors import SpecError
from cloudrl.scripts.lines import Fate, Line
from cloudrl.scripts.sandbox import Call
from cloudrl.spec.volume import parse_mount

_DEFAULT_CHECKPOINTS = "/checkpoints"
_OPTIONS = ("-", "+")


def on_slurm(fields: Mapping[str, Any], calls: Iterable[Call]) -> dict[str, Any]:
    """Fields of a cluster with what its section needs: container, modules, and the volume of its checkpoints."""
    section = dict(fields.get("slurm", {}))
    section.setdefault("container", "bare")
    if section["container"] != "pyxis" and (modules := _modules(calls)):
        section["modules"] = modules
    if (folder := fields.get("checkpoints")) is not None:  # a path of the script's machines, which are the cluster's
        section["volumes"] = with_checkpoints(section.get("volumes", []), folder)
    return {**fields, "slurm": section}


def with_checkpoints(volumes: Sequence[str], folder: str | None) -> list[str]:
    """Volumes with one for the folder of checkpoints, as a cluster without volumes has it."""
    folder = folder or _DEFAULT_CHECKPOINTS
    return list(volumes) if _holds(volumes, folder) else [*volumes, f"{folder}:{folder}"]


def on_slurm_lines(cluster: Mapping[str, Any]) -> Iterable[Line]:
    """What only the user knows of the section, and what was taken for it without a line of the script."""
    if cluster["slurm"]["container"] == "bare":
        why = "slurm.container: bare, the nodes' own Python; its path: --set slurm.python=PYTHON"
        yield Line(Fate.TAKEN, "no container", why)
    if words := checkpoint_options(cluster):
        why = f"mount a folder that all nodes share: {shlex.join(words)}"
        yield Line(Fate.UNKNOWN, "the folder for checkpoints", why)


def checkpoint_options(cluster: Mapping[str, Any]) -> list[str]:
    """The option that gives a cluster on Slurm a shared folder for checkpoints, to be filled in; none if it has one."""
    volumes = list(cluster.get("slurm", {}).get("volumes", []))
    if _holds(volumes, cluster.get("checkpoints", _DEFAULT_CHECKPOINTS)):
        return []
    written = ",".join([*volumes, f"/shared/you/checkpoints:{_DEFAULT_CHECKPOINTS}"])
    return ["--set", f"slurm.volumes=[{written}]"]


def _modules(calls: Iterable[Call]) -> list[str]:
    """What `module load` loads, as often as nothing unloads all of it."""
    loaded = list[str]()
    for call in calls:
        words = call.arguments
        if call.program == "module" and words[:1] and words[0] in ("load", "add"):
            loaded += [word for word in words[1:] if not word.startswith(_OPTIONS)]
        elif call.program == "module" and words[:1] == ("purge",):
            loaded.clear()
    return list(dict.fromkeys(loaded))


def _holds(volumes: Sequence[str], folder: str) -> bool:
    try:
        return any(parse_mount(mount).holds(folder) for mount in volumes)
    except SpecError:
        return False
