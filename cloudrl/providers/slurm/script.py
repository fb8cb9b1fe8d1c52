"""A cluster, and the job that it is for, as a script for sbatch: header, settings, and the shell text in `job/`.

The script starts one agent a node and guards it; all else is the agent's. It runs twice: as the batch script, and by
its copy in the run folder as `job.sh node RANK`, the step of one node. Where it has no job, the cluster waits for jobs
until somebody ends it.

The run folder, `~/.cloudrl/slurm/JOB_ID/RESTART_COUNT` unless `slurm.run_dir` says otherwise, is on a file system that
all nodes share, 0700, and every file in it 0600:

    key                 the secret of agents and client (`cloudrl.node.tokens`); removed when the script ends
    job.sh              this script, and the agent, which every node has copied; removed when the script ends
    cloudrl-node.pyz
    files/              what a search server runs and reads, likewise
    job.json            the job; empty if absent
    head.json           address and ports of rank 0: {"ip", "agent", "gcs", "dashboard", "client"}; before any agent
    nodes/RANK.log      what the step of a node has printed; that of rank 0 is in the log of the Slurm job
    nodes/RANK.agent    empty; there as soon as a node starts its agent
    nodes/RANK.failed   why a node never had an agent, in one line
    nodes/RANK/         the run folder of its agent: agent.log, ray.log, outcome.json, ...
    status              the exit status, or "requeued"; there when all is over
    ../failures         a line for each time that the job was queued again because a node was lost

`~/.cloudrl/slurm/secrets/NAME` may hold the value of a secret that the submitting shell does not have; that of one
cluster alone, which counts before it, is in `secrets/CLUSTER/NAME`.
"""

import base64
import dataclasses
import gzip
import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cloudrl.errors import SpecError
from cloudrl.providers.slurm.cluster import SlurmCluster
from cloudrl.providers.slurm.section import ENGINES, SlurmSection, set_hint
from cloudrl.render.agent import AGENT_FILE, build_agent
from cloudrl.render.agent_options import CPU_SLOTS, agent_options, refuse_secrets
from cloudrl.render.search import files_of
from cloudrl.spec import Cluster, CountRange
from cloudrl.spec.sizes import seconds_of

COMMENT = "cloudrl:"
"""Begins the comment of the Slurm job, by which a client finds it; the run folder follows if it is not the usual."""
TASK = "__TASK__"
"""In the job, becomes `-3` in task 3 of a job array, and nothing elsewhere."""
_CPUS_PER_GPU = 8
_CPUS_WITHOUT_GPU = 8
_MAX_FAILURES = 5
_NOTICE_S = 120
_MOST_FILES_BYTES = 2_500_000
_DEFAULTS: dict[str, str | None] = {
    "requeue": None, "open-mode": "append", "output": "%x-%j.log", "signal": f"B:USR1@{_NOTICE_S}",
}  # fmt: skip
_COUNTS_GPUS = ("gres", "gpus-per-node", "gpus-per-task", "tres-per-node")
_OF_A_STEP = (
    "cpu-bind", "cpus-per-gpu", "cpus-per-task", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task",
    "mem-bind", "ntasks-per-gpu", "ntasks-per-tres", "tres-per-task",
)  # fmt: skip
"""Options that srun also takes from variables (Slurm 26.05, src/srun/opt.c: env_vars), and that can be wrong for a step
of this job: more than it has, or together with others."""
_MEMORY_OF_A_STEP = ("mem-per-cpu", "mem-per-gpu", "mem-per-node")
"""srun refuses two of them (src/common/slurm_opt.c: _validate_memory_options). Slurm sets only the one that it knows of
this job, and not always by an option; a step for which none is set may use the memory of its job."""
_SCRIPT_VARIABLES = (
    "RUN_DIR", "TMP_DIR", "CLUSTER", "GPUS", "MAX_FAILURES", "TIME_LIMIT_NOTICE_S", "JOIN_TIMEOUT_S", "PYTHON",
    "ENGINE", "DOCKERFILE", "SHM_SIZE", "IMAGE", "VOLUMES", "CONTAINER_OPTIONS", "VARIABLES", "SECRETS", "STEP",
    "EUID", "UID", "PPID", "SHELLOPTS", "BASHOPTS",
)  # fmt: skip
"""The settings, and what bash does not let change."""
_HUB_FOLDERS = (
    "HF_HUB_CACHE", "HF_XET_CACHE", "HF_ASSETS_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_TOKEN_PATH",
)  # fmt: skip
"""Paths of the Hub's client and of `datasets` (huggingface_hub 1.33, constants.py; datasets 5.0, config.py)."""
_SOCKET_BYTES = 107
_LONGEST_SOCKET = "/cr-67108863-99-0/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/dash_TaskEventsHead"
"""Below `tmp_dir`: the last job (Slurm 26.05, slurm/slurm.h: MAX_JOB_ID) in a hundredth start, rank 0; the session (Ray
2.60, _private/node.py) of the last process of Linux; and of the sockets that Ray refuses with a longer path
(_private/utils.py: validate_socket_filepath) the one with the longest name, a module of the head's dashboard."""
_TEXTS = Path(__file__).parent / "job"
_BACK_ENDS = {
    **dict.fromkeys(ENGINES, ("docker",)),
    "apptainer": ("apptainer",),
    "pyxis": ("pyxis", "own_process"),
    "bare": ("bare", "own_process"),
}
"""What the nodes run the agent in -> the texts with its functions, as `job.sh` calls them."""

_HEADER = """\
#!/bin/bash
# {what} on Slurm, rendered by cloudrl. Nothing else is needed to start it:
#
#   sbatch {file}
#
# Each node runs one agent, which checks it, starts Ray and fetches data and models; READY means that all of it is up.
# Logs and state: {run_dir}/JOB_ID, which all nodes share."""


def to_slurm(cluster: Cluster, job: Mapping[str, Any] | None = None, *, agent: bytes | None = None) -> str:
    """Render the batch script of a cluster.

    Args:
        cluster: what it is; its section `slurm` decides how Slurm gives it.
        job: what it is for: `submission_id`, `argv`, `runtime_env`, `metadata` and `durable`, the fields of a
            `DurablePlan`. The script ends as this does.
        agent: the node agent's file; None is this release's own.

    Raises:
        SpecError: the section or a field cannot be had on Slurm, or the value of a secret would stand in the script.
    """
    on_slurm = SlurmCluster.read(cluster)
    own, back_end, directives = on_slurm.own, on_slurm.back_end, _directives(on_slurm)
    _check_names([*cluster.env, *cluster.secrets])
    refuse_secrets(cluster.env, "secrets: [{0}] takes it from the environment of sbatch")
    run_dir = _quote(own.run_dir) if own.run_dir else "$HOME/.cloudrl/slurm"
    what = "Ray cluster for verl" if job is None else f"Training {job['submission_id'].replace(TASK, '')}"
    parts = [
        _HEADER.format(what=what, file=f"{cluster.name}.sh", run_dir=own.run_dir or "~/.cloudrl/slurm"),
        *(_directive(name, value) for name, value in directives.items()),
        "\nset -euo pipefail\numask 077\n",
        _unset_variables(directives),
        f"RUN_DIR={run_dir}",
        f"TMP_DIR={_tmp_dir(own, back_end)}",
        *_settings(on_slurm, _notice_s(directives)),
        _set_up_node(own),
        *((_TEXTS / f"{name}.sh").read_text().rstrip() for name in ("job", *_BACK_ENDS[back_end])),
        _job(job),
        _agent(build_agent(for_cpu=cluster.needs_cpu_parts) if agent is None else agent),
        _files(_limited(files_of(cluster))),
        '\nif [ "${1:-}" = node ]; then node "$2"; else batch; fi',
    ]
    return "\n".join(parts) + "\n"


def _directives(on_slurm: SlurmCluster) -> dict[str, str | None]:
    """The options of sbatch: from the portable fields, ours unless the section says otherwise, and the section's."""
    cluster, own, given = on_slurm.cluster, on_slurm.own, on_slurm.given
    wanted: dict[str, str | None] = {"job-name": cluster.name, "nodes": str(cluster.nodes), "ntasks-per-node": "1"}
    gpus = cluster.gpus_per_node
    if cluster.device == "gpu" and not any(name in given for name in _COUNTS_GPUS):
        if gpus is None:
            raise SpecError(f"gpu {cluster.gpu!r} leaves their number open, and Slurm wants it", hint="gpu: H100:8")
        wanted["gpus-per-node"] = str(gpus)
    if not on_slurm.counts_cpus:
        wanted["cpus-per-task"] = str(_cpus(cluster, gpus))
    if cluster.memory is not None and not on_slurm.sizes_memory:
        wanted["mem"] = _slurm_size(cluster.memory)
    defaults = {"comment": f"{COMMENT}{own.run_dir or ''}", **_DEFAULTS}
    if "no-requeue" in given:
        del defaults["requeue"], defaults["signal"]
    return {**wanted, **{name: value for name, value in defaults.items() if name not in given}, **given}


def _cpus(cluster: Cluster, gpus: int | None) -> int:
    if cluster.cpu is not None and (least := CountRange.parse(cluster.cpu.rpartition(":")[2]).min) is not None:
        return least
    return _CPUS_PER_GPU * gpus if gpus else _CPUS_WITHOUT_GPU


def cpus_per_node(on_slurm: SlurmCluster) -> int:
    """What Ray counts on each node; 0 if the script does not say it by `cpus-per-task`."""
    if on_slurm.cluster.device == "cpu":
        return CPU_SLOTS
    number = _directives(on_slurm).get("cpus-per-task") or ""
    return int(number) if number.isdigit() else 0


def _slurm_size(memory: str) -> str:
    """The lower bound of `128GB..` as Slurm writes it, `131072M`; of `..1TB` the upper one."""
    least, _, most = memory.partition("..")
    number, unit = (least or most)[:-2], (least or most)[-2:]
    return f"{round(float(number) * {'MB': 1, 'GB': 1024, 'TB': 1024**2}[unit])}M"


def _directive(name: str, value: str | None) -> str:
    """One line. Slurm takes quotes and, inside of them too, backslashes (22.05, opt.c: _get_argument)."""
    if value is None:
        return f"#SBATCH --{name}"
    if not re.fullmatch(r"[\w%@:.,/=+*\[\]-]+", value, re.ASCII):
        value = '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return f"#SBATCH --{name}={value}"


def _unset_variables(given: Mapping[str, str | None]) -> str:
    """For sbatch that is typed in another job: it hands that job's variables on, and srun reads them as options."""
    names = [*_MEMORY_OF_A_STEP, *(name for name in _OF_A_STEP if name not in given)]
    words = textwrap.wrap("unset " + " ".join(f"SLURM_{name.upper().replace('-', '_')}" for name in names), 116)
    return "# of another job, if sbatch was typed in one; srun would read them\n" + " \\\n  ".join(words) + "\n"


def _notice_s(directives: Mapping[str, str | None]) -> int:
    """How long before the time limit the script gets its signal."""
    match = re.search(r"USR1@(\d+)", directives.get("signal") or "")
    return int(match[1]) if match else _NOTICE_S


def _settings(on_slurm: SlurmCluster, notice_s: int) -> Iterator[str]:
    cluster, own, back_end, release = on_slurm.cluster, on_slurm.own, on_slurm.back_end, on_slurm.release
    image = own.image or cluster.image or (release.image if release else f"cloudrl-{cluster.name}")
    volumes = [] if back_end == "bare" else [f"{volume.instance_path}:{volume.path}" for volume in on_slurm.volumes]
    if back_end == "bare":
        _check_bare(on_slurm)
    yield f"CLUSTER={cluster.name}"
    yield f"GPUS={cluster.vendor if cluster.device == 'gpu' else 'none'}"
    yield f"MAX_FAILURES={_MAX_FAILURES}          # so often a lost node lets the job start again"
    yield f"TIME_LIMIT_NOTICE_S={notice_s} # as in --signal"
    yield f"JOIN_TIMEOUT_S={seconds_of(own.join_timeout)}"
    yield f"PYTHON={_quote(own.python)}"
    if back_end in ENGINES:
        yield f"ENGINE={back_end}"
        yield f"DOCKERFILE={_quote(own.dockerfile or '')}"
        yield f"SHM_SIZE={cluster.shared_memory or ''}"
    if back_end != "bare":
        yield f"IMAGE={_quote(image)}"
        yield _array("VOLUMES", volumes)
    if back_end in (*ENGINES, "apptainer"):
        yield _array("CONTAINER_OPTIONS", [*_container_words(cluster, back_end), *own.container_options])
        yield _array("VARIABLES", list(on_slurm.environment))
    yield _array("SECRETS", cluster.secrets)
    yield "STEP=() # further options of srun"
    if back_end != "bare" and (outside := [name for name in _HUB_FOLDERS if name not in cluster.env]):
        yield f"unset {' '.join(outside)} # where the login node has them, the container may have nothing"
    for name, value in on_slurm.environment.items():
        yield f"export {name}={_quote(value)}"
    options = dataclasses.replace(
        agent_options(cluster, release),
        checkpoints=Path(on_slurm.checkpoint_folder),
        data_dir=Path(on_slurm.data_folder),
        join_timeout_s=float(seconds_of(own.join_timeout)),
        disks_stay=True,
    )
    yield _array("options", options.to_argv())


def _tmp_dir(own: SlurmSection, back_end: str) -> str:
    """Raises: SpecError: Ray's sockets could not be in it; in docker and podman they are in the container's own."""
    length, most = len(own.tmp_dir.encode()), _SOCKET_BYTES - len(_LONGEST_SOCKET)
    if length > most and back_end not in ENGINES:
        raise SpecError(
            f"slurm.tmp_dir: {own.tmp_dir} has {length} bytes, and at most {most} leave room for the paths of Ray's "
            f"sockets, which end at {_SOCKET_BYTES}",
            hint=set_hint("tmp_dir", "/local"),
        )
    return _quote(own.tmp_dir)


def _check_bare(on_slurm: SlurmCluster) -> None:
    for mount in on_slurm.volumes:
        if mount.instance_path != mount.path and not mount.holds(on_slurm.cluster.checkpoints):
            raise SpecError(
                f"volume {mount}: without a container nothing can be mounted",
                hint=f"{set_hint('container', 'docker')}\nOr name {mount.instance_path} itself",
            )


def _container_words(cluster: Cluster, back_end: str) -> list[str]:
    if back_end == "apptainer":
        return ["--pwd", cluster.working_dir] if cluster.working_dir else []
    user = ["--user", cluster.user] if cluster.user else []
    return [*user, *(["--workdir", cluster.working_dir] if cluster.working_dir else [])]


def _check_names(variables: list[str]) -> None:
    for name in variables:
        if name in _SCRIPT_VARIABLES:
            raise SpecError(
                f"{name}: the job script has a variable of its own by this name",
                hint=f"Give it to jobs alone: --env {name}=...",
            )


def _quote(text: str) -> str:
    return f"'{text}'" if re.fullmatch(r"[\w.,=:/@%+-]*,[\w.,=:/@%+-]*", text, re.ASCII) else shlex.quote(text)


def _array(name: str, words: Any) -> str:
    if not words:
        return f"{name}=()"
    return "\n".join([f"{name}=(", *(f"  {_quote(word)}" for word in words), ")"])


def _set_up_node(own: SlurmSection) -> str:
    lines = [f"{{\n{command}\n}} || fail {_quote(f'node_setup: {command}')}" for command in own.node_setup]
    if own.modules:
        modules = shlex.join(own.modules)
        load = f"module load {modules} || fail {_quote(f'module load {modules}')}"
        profile = "# shellcheck disable=SC1091\ncommand -v module >/dev/null || . /etc/profile"
        lines = [profile, load, *lines]
    return "\nset_up_node() {\n" + "\n".join(lines or ["  :"]) + "\n}\n"


def _job(job: Mapping[str, Any] | None) -> str:
    """As JSON, which escapes line breaks: no line of it can end the text early, and a shell reads nothing in it."""
    if job is None:
        return "\nwrite_job() { :; }"
    return f"\nwrite_job() {{\n  cat <<'JOB'\n{json.dumps(job, indent=2)}\nJOB\n}}"


def _agent(agent: bytes) -> str:
    return f"\n# {AGENT_FILE}\nwrite_agent() {{\n  {_unpacked(agent, 'AGENT')}\n}}"


def _limited(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Raises: SpecError: sbatch might refuse the script, of which it takes 4 MB (slurm.conf(5): max_script_size)."""
    size_bytes = sum(map(len, files.values()))
    if size_bytes > _MOST_FILES_BYTES:
        raise SpecError(
            f"{', '.join(files)}: {size_bytes:,} bytes are too many for a script of Slurm",
            hint="Put the passages on the shared file system, and name that: search:/shared/passages.jsonl",
        )
    return files


def _files(files: Mapping[str, bytes]) -> str:
    """What is beside the agent on every node."""
    if not files:
        return "\nwrite_files() { :; }"
    last = [*files][-1]
    ends = {name: f'>"$1"/{_quote(name)}' + ("" if name == last else " &&") for name in files}
    commands = (_unpacked(content, "FILE", ends[name]) for name, content in files.items())
    return "\n# {}\nwrite_files() {{ # FOLDER\n  {}\n}}".format(", ".join(files), "\n  ".join(commands))


def _unpacked(content: bytes, word: str, to: str = "") -> str:
    packed = base64.b64encode(gzip.compress(content, mtime=0)).decode()
    lines = "\n".join(textwrap.wrap(packed, 120))
    return f"base64 -d <<'{word}' | gzip -d {to}".rstrip() + f"\n{lines}\n{word}"
