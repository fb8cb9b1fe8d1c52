"""What a complete configuration means on its cluster: modes that cannot run there, idle GPUs, saves that get lost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from cloudrl.jobs.asynchronous import is_placed
from cloudrl.jobs.data_check import training_rows
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.findings import Finding
from cloudrl.jobs.redaction import redact_words
from cloudrl.protocol.folders import ON_HEAD
from cloudrl.scripts.variables import OF_AMD
from cloudrl.spec import override_argument
from cloudrl.units import dollars_text
from cloudrl.verl import keys
from cloudrl.verl.async_modes import ASYNC, PINNED, SEPARATE
from cloudrl.verl.memory.runs import run_alike
from cloudrl.verl.modes import idle_gpus, mode_of, problems_of_mode, warnings_of_mode, warnings_of_steps
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.setting import MODE, Setting
from cloudrl.verl.steps import (
    Budget,
    notes_of_validation,
    steps_of,
    warnings_of_lengths,
    warnings_of_saves,
    warnings_of_updates,
)
from cloudrl.verl.unread_keys import unread_keys

_CUDA, _HIP, _ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_ADAPTERS = ("NCCL_IB_HCA", "NCCL_TOPO_FILE", "UCX_NET_DEVICES")
_SHOWN = {"amd": "AMD", "nvidia": "NVIDIA"}
_SET_BY_RAY = {"amd": _HIP, "nvidia": _CUDA}
"""Ray 2.60, _private/accelerators/amd_gpu.py and nvidia_gpu.py: set_current_process_visible_accelerator_ids."""
_NOT_SET_BY_RAY = "RAY_EXPERIMENTAL_NOSET_"
_OF_OTHERS = {"amd": re.compile(r"NCCL_(NVLS|MNNVL)\w*|NVTE_\w+|NVSHMEM_\w+"), "nvidia": OF_AMD}
"""Variables that only libraries for the GPUs of another vendor read; RCCL reads those of NCCL."""


def mode_problems(draft: JobDraft, setting: Setting) -> list[Problem]:
    """Problems of the trainer's mode, which count as verl's own."""
    return list(problems_of_mode(setting, draft.variables, on_cpu=draft.cluster.device == "cpu"))


def with_warnings(draft: JobDraft, snapshot: Snapshot, setting: Setting) -> JobDraft:
    """The draft with what wastes money, loses work or trains nothing."""
    draft = draft.warning(
        *warnings_of_steps(setting),
        *warnings_of_mode(setting, has_cupy=_has_cupy(snapshot)),
        *(unread_keys(_without_secrets(draft.arguments), setting) if setting.is_read else ()),
        *_idle(draft, snapshot, setting),
    )
    draft = draft.warning(*_wandering_shards(draft, snapshot, setting))
    draft = _with_steps(draft.noting(*_own_disks(draft, snapshot, setting)), snapshot, setting)
    lost = list(_lost_queue(draft, snapshot, setting))
    return draft.warning(*(finding.text for finding in lost)) if draft.options.unchecked else draft.refused(*lost)


def _without_secrets(arguments: Mapping[str, str]) -> dict[str, str]:
    words = {key: override_argument(key, text) for key, text in arguments.items()}
    return {key: redact_words([word])[0].partition("=")[2] for key, word in words.items()}


def _with_steps(draft: JobDraft, snapshot: Snapshot, setting: Setting) -> JobDraft:
    """With what its numbers mean beside its length; a save that comes late on CPUs loses little."""
    steps = steps_of(setting, training_rows(draft, snapshot))
    draft = draft.warning(*warnings_of_updates(setting, steps), *warnings_of_lengths(setting))
    if draft.cluster.device == "cpu":
        return draft
    draft = draft.warning(*warnings_of_saves(setting, steps, _budget(draft, snapshot)))
    return draft.noting(*notes_of_validation(setting, steps)) if keys.TEST_FREQ in draft.values else draft


def _budget(draft: JobDraft, snapshot: Snapshot) -> Budget | None:
    machines, memory = snapshot.machines, draft.memory
    if machines is None or memory is None or not machines.max_cost or not machines.price_per_hour:
        return None
    run = run_alike(snapshot.runs, memory.run_of("", draft.job.name))
    return Budget(machines.max_cost, machines.price_per_hour, run.step_s, run.submission_id) if run else None


def _has_cupy(snapshot: Snapshot) -> bool:
    """Whether the machines that are going to be rented install it; of others that is not known."""
    return snapshot.machines is not None and any("cupy" in command for command in snapshot.machines.setup)


def _idle(draft: JobDraft, snapshot: Snapshot, setting: Setting) -> Iterator[str]:
    idle = idle_gpus(setting) if draft.cluster.device == "gpu" else 0
    if not idle:
        return
    price = snapshot.machines.price_per_hour if snapshot.machines is not None else None
    cost = f", {dollars_text(price * idle / setting.cluster_gpus)} an hour" if price else ""
    nodes, gpus = setting.whole(keys.NODES) or 0, setting.whole(keys.GPUS) or 0
    all_nodes = nodes + idle // gpus if gpus and idle % gpus == 0 else 0
    more = f". To use them: {keys.NODES}={all_nodes}" if 0 < all_nodes <= draft.cluster.gpu_nodes else ""
    yield (
        f"{idle} of the {setting.cluster_gpus} GPUs of cluster {draft.cluster.name!r} stay idle{cost}: "
        f"the job takes {keys.NODES}={nodes} with {keys.GPUS}={gpus}{more}"
    )


def _lost_queue(draft: JobDraft, snapshot: Snapshot, setting: Setting) -> Iterator[Finding]:
    """An asynchronous mode saves its queue from all nodes into one folder (TransferQueue 0.1.11, save_checkpoint)."""
    mode, nodes, has_own_disks = mode_of(setting), draft.cluster.nodes, _has_own_disks(snapshot)
    saves = (setting.whole(keys.SAVE_FREQ) or 0) > 0
    is_on_head = ON_HEAD in draft.job.entrypoint and setting.get(PINNED) is not None
    if has_own_disks and saves and mode in ASYNC and nodes > 1 and not is_on_head:
        yield Finding(
            f"{MODE}={mode} saves its queue into one folder that all nodes see, and on {nodes} nodes without a volume "
            f"{draft.cluster.checkpoint_dir} is another disk on each: its first save fails. Only a job that starts "
            f"`python3 -m {keys.MAIN}`, with no PYTHONPATH of its own, on agents of this release, can keep its "
            "queue on the head",
            "A network volume that all nodes mount there: --set volumes=[NAME:/checkpoints]\n"
            f"Without saves: {keys.SAVE_FREQ}=-1; synchronous: {MODE}=sync",
            is_about_verl=True,
        )


def _wandering_shards(draft: JobDraft, snapshot: Snapshot, setting: Setting) -> Iterator[str]:
    """Ray chooses the nodes of a pool (Ray 2.60, scheduling/policy/scorer.cc), unless the job's command does."""
    saves = (setting.whole(keys.SAVE_FREQ) or 0) > 0
    is_wandering = mode_of(setting) == SEPARATE and draft.cluster.nodes > 2 and not is_placed(draft)
    if is_wandering and saves and _has_own_disks(snapshot):
        yield (
            f"the agents of cluster {draft.cluster.name!r} are of an older release, so that verl chooses anew at each "
            "start which nodes train: a resume may not find the shards of each rank on its own node's disk. Start the "
            "cluster again, or mount a network volume: --set volumes=[NAME:/checkpoints]"
        )


def _has_own_disks(snapshot: Snapshot) -> bool:
    """Of a cluster that is up its agents have seen it; nodes of one machine share a disk at different paths, too."""
    machines, cluster = snapshot.machines, snapshot.cluster
    if machines is not None:
        return machines.has_own_disks
    return cluster.has_agents and not cluster.has_one_disk and not snapshot.is_expected


def _own_disks(draft: JobDraft, snapshot: Snapshot, setting: Setting) -> Iterator[str]:
    machines, nodes = snapshot.machines, draft.cluster.gpu_nodes
    saves = (setting.whole(keys.SAVE_FREQ) or 0) > 0
    if machines is not None and machines.has_own_disks and saves and nodes > 1:
        yield (
            f"each of the {nodes} nodes keeps its part of a checkpoint on its own disk; when a machine is lost, the "
            "run starts over. A folder that all nodes share keeps them: --volume /SHARED:/checkpoints"
        )


def check_variables(variables: Mapping[str, str], vendor: str | None = None) -> Iterator[Finding | str]:
    """What a job's variables break: a finding, or a warning as text.

    verl's workers read the three of the GPUs (verl 0.9.1,
    single_controller/base/worker.py: _setup_env_cuda_visible_devices).

    Args:
        variables: of the job's environment.
        vendor: of the cluster's GPUs; None if unknown.
    """
    yield from _visible_devices(variables, vendor)
    for name in (*_INTERFACES, *_ADAPTERS):
        if name in variables:
            what = "interfaces may have other names; without it, each node sets its own"
            what = what if name in _INTERFACES else "adapters may have other names; without it, NCCL finds them"
            yield f"{name}={variables[name]} in the job's environment holds for all nodes, whose {what}"
    others = _OF_OTHERS.get(vendor or "")
    foreign = [name for name in variables if others and others.fullmatch(name) and name not in (_HIP, _ROCR)]
    if foreign:
        yield f"without effect on GPUs of {_SHOWN[vendor or '']}: {', '.join(foreign)}; leave out what is not for them"


def _visible_devices(variables: Mapping[str, str], vendor: str | None) -> Iterator[Finding | str]:
    cuda, hip, rocr = (variables.get(name) for name in (_CUDA, _HIP, _ROCR))
    own = _SET_BY_RAY.get(vendor or "")
    clash = next((name for name in (_ROCR, _HIP, _CUDA) if own and name != own and variables.get(name)), None)
    if rocr and (cuda or hip):
        other = _HIP if hip else _CUDA
        yield Finding(
            f"the job's environment sets {_ROCR} and {other}, and verl's workers refuse the two together",
            "Leave both out: Ray gives each worker its GPUs",
        )
    elif cuda and hip and cuda != hip:
        yield Finding(
            f"the job's environment sets {_HIP}={hip} and {_CUDA}={cuda}, and verl's workers refuse two values",
            "Leave both out: Ray gives each worker its GPUs",
        )
    elif clash is not None and not any(name.startswith(_NOT_SET_BY_RAY) and variables[name] for name in variables):
        yield Finding(
            f"the job's environment sets {clash}, and for GPUs of {_SHOWN[vendor or '']} Ray sets {own} in each "
            "worker: verl's workers refuse the two",
            f"Leave it out: Ray gives each worker its GPUs. Against a recipe's: --env {clash}=",
        )
    elif named := next((name for name in (_CUDA, _HIP, _ROCR) if variables.get(name)), None):
        yield f"{named} in the job's environment: leave it out, Ray gives each worker its GPUs"
