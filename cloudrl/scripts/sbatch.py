"""The `#SBATCH` lines of a script: what they are in a cluster, and the variables that Slurm makes of them."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudrl.scripts.lines import Fate, Line
from cloudrl.scripts.sandbox import SCRATCH

_LINE = re.compile(r"#SBATCH\s+(.+)")
_DISABLED = re.compile(r"#\s+SBATCH\s|##+SBATCH\s")
_LONG = {
    "-N": "nodes", "-n": "ntasks", "-t": "time", "-p": "partition", "-A": "account", "-J": "job-name",
    "-o": "output", "-e": "error", "-c": "cpus-per-task", "-w": "nodelist", "-x": "exclude", "-C": "constraint",
    "-q": "qos", "-G": "gpus", "-d": "dependency", "-L": "licenses", "-D": "chdir", "-a": "array",
}  # fmt: skip
_DROPPED = {
    "ntasks": "cloudrl starts one task a node",
    "ntasks-per-node": "cloudrl starts one task a node",
    "output": "cloudrl jobs logs; the script's own log is in its run_dir",
    "error": "cloudrl jobs logs; the script's own log is in its run_dir",
    "open-mode": "cloudrl writes the logs",
    "export": "a job gets the variables of its recipe",
    "signal": "cloudrl ends what it has started itself",
    "wait-all-nodes": "the agents wait for one another",
    "chdir": "a job starts in its working directory: --working-dir DIR",
    "get-user-env": "a job gets the variables of its recipe",
}
_BESIDES = {"array": "; SLURM_ARRAY_TASK_ID is 0 in the recipe: override it for each task"}
_GRES = re.compile(r"gpu(?::(?P<kind>[A-Za-z][\w.-]*))?(?::(?P<count>\d+))?(\(.*\))?")
_GPUS = re.compile(r"(?:(?P<kind>[A-Za-z][\w.-]*):)?(?P<count>\d+)")
_MEMORY = re.compile(r"(\d+)([KMGT])?B?", re.IGNORECASE)


@dataclass(frozen=True)
class Slurm:
    """What the lines say.

    Attributes:
        is_used: Whether the script is one for Slurm.
        options: sbatch's long options with their values; None for one that has none.
        cluster: Fields of a cluster that they become.
        lines: What became of each.
    """

    is_used: bool = False
    options: Mapping[str, str | None] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()


def read_sbatch(text: str) -> Slurm:
    """Read the lines of a script, up to its first command, as sbatch does."""
    options, lines, places = dict[str, str | None](), list[Line](), dict[str, tuple[int, str]]()
    for number, line in enumerate(text.splitlines(), 1):
        if _DISABLED.match(line):
            lines.append(Line(Fate.DROPPED, line.strip(), "a comment for sbatch, too", number))
        elif match := _LINE.match(line):
            for name, value in _options(match[1]):
                options[name], places[name] = value, (number, line.strip())
        elif line.strip() and not line.startswith("#"):
            break
    cluster, taken = _cluster(options)
    for name, (number, written) in places.items():
        if name in _DROPPED:
            lines.append(Line(Fate.DROPPED, written, _DROPPED[name], number))
        else:
            lines.append(
                Line(
                    Fate.TAKEN, written, taken.get(name, f"slurm.{name} of the cluster{_BESIDES.get(name, '')}"), number
                )
            )
    return Slurm(bool(options) or "SLURM_" in text, options, cluster, tuple(lines))


def slurm_variables(slurm: Slurm, cwd: str) -> dict[str, str]:
    """What Slurm sets for a job with these options, on its first node (sbatch(1), OUTPUT ENVIRONMENT VARIABLES)."""
    if not slurm.is_used:
        return {}
    count, nodes = gpus_of(slurm.options), _number(slurm.options.get("nodes"))
    tasks = _number(slurm.options.get("ntasks-per-node"))
    known = {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_GPUS_PER_NODE": count, "SLURM_GPUS_ON_NODE": count,
        "SLURM_CPUS_PER_TASK": _number(slurm.options.get("cpus-per-task")), "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_NTASKS": _number(slurm.options.get("ntasks")) or (nodes and nodes * (tasks or 1)),
        "SLURM_CPUS_ON_NODE": _number(slurm.options.get("cpus-per-task")),
    }  # fmt: skip
    if not slurm.options:
        known = dict.fromkeys(known)
    last = (nodes or 2) - 1
    names = f"node-[0-{last}]" if last else "node-0"
    fixed = {
        "SLURM_JOB_ID": "1000", "SLURM_JOBID": "1000", "SLURM_JOB_NODELIST": names, "SLURM_NODELIST": names,
        "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURM_SUBMIT_DIR": cwd,
        "SLURMD_NODENAME": "node-0", "SLURM_TMPDIR": SCRATCH, "SLURM_ARRAY_TASK_ID": "0", "SLURM_RESTART_COUNT": "0",
        "SLURM_JOB_NAME": slurm.options.get("job-name") or "job", "SLURM_SUBMIT_HOST": "login",
        "SLURM_JOB_PARTITION": slurm.options.get("partition") or "gpu", "SLURM_JOB_USER": "root",
    }  # fmt: skip
    return {**fixed, **{name: str(value) for name, value in known.items() if value is not None}}


def gpus_of(options: Mapping[str, str | None]) -> int | None:
    """GPUs of each node."""
    return _gpus(options)[1]


def _options(text: str) -> list[tuple[str, str | None]]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    found: list[tuple[str, str | None]] = []
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            follows = not equals and bool(words) and not words[0].startswith("-")
            found.append((name, value if equals else words.pop(0) if follows else None))
        elif word[:2] in _LONG:
            found.append((_LONG[word[:2]], word[2:].lstrip("=") or (words.pop(0) if words else None)))
    return found


def _number(value: str | None) -> int | None:
    match = re.match(r"\d+", value or "")
    return int(match[0]) if match else None


def _gpus(options: Mapping[str, str | None]) -> tuple[str | None, int | None]:
    """Kind and number of each node's GPUs."""
    nodes = _number(options.get("nodes")) or 1
    if match := _GPUS.fullmatch(options.get("gpus-per-node") or ""):
        return match["kind"], int(match["count"])
    for part in (options.get("gres") or "").split(","):
        if match := _GRES.fullmatch(part.strip()):
            return match["kind"], int(match["count"] or 1)
    if match := _GPUS.fullmatch(options.get("gpus") or ""):
        return match["kind"], max(1, int(match["count"]) // nodes)
    if match := _GPUS.fullmatch(options.get("gpus-per-task") or ""):
        return match["kind"], int(match["count"]) * (_number(options.get("ntasks-per-node")) or 1)
    return None, None


def _cluster(options: Mapping[str, str | None]) -> tuple[dict[str, Any], dict[str, str]]:
    fields, taken, slurm = dict[str, Any](), dict[str, str](), dict[str, Any]()
    if nodes := _number(options.get("nodes")):
        fields["nodes"], taken["nodes"] = nodes, f"nodes: {nodes}"
    kind, count = _gpus(options)
    if count:
        fields["gpu"] = f"{kind}:{count}" if kind else str(count)
        for option in ("gres", "gpus-per-node", "gpus", "gpus-per-task"):
            taken[option] = f"gpu: {fields['gpu']}"
    if cpus := _number(options.get("cpus-per-task")):
        cpus *= _number(options.get("ntasks-per-node")) or 1
        fields["cpu"], taken["cpus-per-task"] = f"{cpus}..", f"cpu: {cpus}.."
    match = _MEMORY.fullmatch(options.get("mem") or "")
    if match and int(match[1]):
        gigabytes = int(match[1]) * {"K": 1e-6, "M": 1e-3, "G": 1, "T": 1000}[(match[2] or "M").upper()]
        fields["memory"] = f"{max(1, round(gigabytes))}GB.."
        taken["mem"] = f"memory: {fields['memory']}"
    if name := options.get("job-name"):
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:41]
        taken["job-name"] = f"the cluster's name: {slug}"
        fields["name"] = slug
    for option, value in options.items():
        if option not in taken and option not in _DROPPED:
            slurm[option] = True if value is None else value
    if slurm:
        fields["slurm"] = slurm
    return fields, taken
