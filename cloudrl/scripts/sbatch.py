"""The `#SBATCH` lines of a script, or the options of its srun: what they are in a cluster, and Slurm's variables."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloudrl.scripts.containers import OF_PYXIS, Container, container_of_options, container_sentence
from cloudrl.scripts.lines import Fate, Line
from cloudrl.scripts.sandbox import SCRATCH
from cloudrl.scripts.slurm_gpus import GPU_OPTIONS, counted_gpus, first_number, named_gpus
from cloudrl.scripts.taken import cluster_name

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
    "container": "an OCI bundle; cloudrl starts docker, podman, apptainer or pyxis: --set slurm.container=NAME",
    **dict.fromkeys(OF_PYXIS, "cloudrl starts the container itself"),
}
_ALLOCATES = frozenset({"nodes", "partition", "account", "qos", "time", *GPU_OPTIONS})
_OF_SRUN = frozenset({*_LONG.values(), *GPU_OPTIONS, "ntasks-per-node", "mem", "mem-per-gpu", "mem-per-cpu",
                      "cpus-per-gpu", "reservation", "export"})  # fmt: skip
"""Options of srun that say what is asked for, each with a value; others are about how a step runs."""
_HOW = frozenset({
    "container-image", "container-mounts", "container-workdir", "container-name", "container-save", "container-env",
    "mpi", "cpu-bind", "mem-bind", "gpu-bind", "gpu-freq", "cpu-freq", "gpus-per-task", "ntasks-per-gpu",
    "ntasks-per-core", "ntasks-per-socket", "threads-per-core", "cores-per-socket", "sockets-per-node", "distribution",
    "input", "wait", "task-prolog", "task-epilog", "network", "tmp", "slurmd-debug", "relative", "jobid", "comment",
    "open-mode", "signal", "priority", "wckey", "het-group", "profile",
})  # fmt: skip
"""Options of srun about how a step runs whose value may be the next word."""
_SHORT = {**_LONG, "-r": "relative", "-i": "input", "-m": "distribution", "-W": "wait"}
_OF_A_STEP = frozenset({"overlap", "jobid", "relative"})
_BESIDES = {"array": "; SLURM_ARRAY_TASK_ID is 0 in the recipe: override it for each task"}
_MEMORY = re.compile(r"(\d+)([KMGT])?B?", re.IGNORECASE)


@dataclass(frozen=True)
class Slurm:
    """What the lines say.

    Attributes:
        is_used: Whether the script is one for Slurm.
        options: sbatch's long options with their values; None for one that has none.
        cluster: Fields of a cluster that they become.
        container: What pyxis gets.
        lines: What became of each.
    """

    is_used: bool = False
    options: Mapping[str, str | None] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    container: Container | None = None
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
    return _slurm(options, places, lines, is_used=bool(options) or "SLURM_" in text)


def read_srun(words: Sequence[str], number: int | None) -> Slurm:
    """Read the options of a srun that asks for nodes itself; unused for a step of an allocation that there is.

    Args:
        words: behind `srun`.
        number: of its line.
    """
    options, waiting = dict[str, str | None](), list(words)
    while waiting and waiting[0].startswith("-"):
        word = waiting.pop(0)
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--"):
            name, value = _SHORT.get(word[:2], ""), word[2:].lstrip("=")
            equals = value
        if not equals and (name in _OF_SRUN or name in _HOW) and waiting:
            value = waiting.pop(0)
        options[name] = value or None
    if _OF_A_STEP & options.keys() or not _ALLOCATES & options.keys():
        return Slurm()
    kept = {name: value for name, value in options.items() if name in _OF_SRUN and value is not None}
    places = {name: (number, f"srun --{name}={value}") for name, value in kept.items()}
    return _slurm(kept, places, [], is_used=True)


def _slurm(
    options: Mapping[str, str | None], places: Mapping[str, tuple[int | None, str]], lines: list[Line], *, is_used: bool
) -> Slurm:
    cluster, taken = _cluster(options)
    for name, (number, written) in places.items():
        fate, why = Fate.TAKEN, taken.get(name, f"slurm.{name} of the cluster{_BESIDES.get(name, '')}")
        if name in _DROPPED:
            fate, why = Fate.DROPPED, _DROPPED[name]
        elif (container := container_of_options({name: options[name]})) is not None:
            fate, why = container_sentence(container, same_machines=True)
        lines.append(Line(fate, written, why, number))
        if (meant := _with_backslash(written)) is not None:
            lines.append(Line(Fate.WRONG, written, f"sbatch reads no further than the #; write {meant}", number))
    return Slurm(is_used, options, cluster, container_of_options(options), tuple(lines))


def _with_backslash(written: str) -> str | None:
    """The line with a backslash before a # within a word, which sbatch takes for a comment; None without one.

    Source: Slurm 24.05, sbatch/opt.c: _get_argument.
    """
    match = re.search(r"(?<=[^\s\\#])#(?=\S)", written[1:])
    return None if match is None else f"{written[: match.start() + 1]}\\{written[match.start() + 1 :]}"


def slurm_variables(slurm: Slurm, cwd: str) -> dict[str, str]:
    """What Slurm sets for a job with these options, on its first node (sbatch(1), OUTPUT ENVIRONMENT VARIABLES)."""
    if not slurm.is_used:
        return {}
    count, nodes = counted_gpus(slurm.options)[1], first_number(slurm.options.get("nodes"))
    tasks = first_number(slurm.options.get("ntasks-per-node"))
    known = {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_GPUS_PER_NODE": count, "SLURM_GPUS_ON_NODE": count,
        "SLURM_CPUS_PER_TASK": first_number(slurm.options.get("cpus-per-task")), "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_NTASKS": first_number(slurm.options.get("ntasks")) or (nodes and nodes * (tasks or 1)),
        "SLURM_CPUS_ON_NODE": first_number(slurm.options.get("cpus-per-task")),
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


def _cluster(options: Mapping[str, str | None]) -> tuple[dict[str, Any], dict[str, str]]:
    fields, taken, slurm = dict[str, Any](), dict[str, str](), dict[str, Any]()
    if nodes := first_number(options.get("nodes")):
        fields["nodes"], taken["nodes"] = nodes, f"nodes: {nodes}"
    kind, count = counted_gpus(options)
    named = named_gpus(options)
    if count:
        fields["gpu"] = f"{named}:{count}" if named else str(count)
        taken |= dict.fromkeys(GPU_OPTIONS, f"gpu: {fields['gpu']}")
        slurm |= _typed(options, kind, count)
    if named and "constraint" in options:
        taken["constraint"] = f"gpu: {fields.get('gpu', named)}; slurm.constraint of the cluster"
        slurm["constraint"] = options["constraint"]
    if cpus := first_number(options.get("cpus-per-task")):
        cpus *= first_number(options.get("ntasks-per-node")) or 1
        fields["cpu"], taken["cpus-per-task"] = f"{cpus}..", f"cpu: {cpus}.."
    match = _MEMORY.fullmatch(options.get("mem") or "")
    if match and int(match[1]):
        gigabytes = int(match[1]) * {"K": 1e-6, "M": 1e-3, "G": 1, "T": 1000}[(match[2] or "M").upper()]
        fields["memory"] = f"{max(1, round(gigabytes))}GB.."
        taken["mem"] = f"memory: {fields['memory']}"
    if name := options.get("job-name"):
        fields["name"] = cluster_name(name)
        taken["job-name"] = f"the cluster's name: {fields['name']}"
    for option, value in options.items():
        if option not in taken and option not in _DROPPED and not option.startswith("container-"):
            slurm[option] = True if value is None else value
    if slurm:
        fields["slurm"] = slurm
    return fields, taken


def _typed(options: Mapping[str, str | None], kind: str | None, count: int) -> dict[str, str]:
    """What sbatch needs beside the number of GPUs: the site's own name of their type, other resources of `gres`."""
    gres = options.get("gres") or ""
    if "," in gres:
        return {"gres": gres}
    return {"gres": f"gpu:{kind}:{count}"} if kind else {}
