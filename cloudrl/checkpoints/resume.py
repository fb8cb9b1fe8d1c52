"""From where a job of a run's name goes on: found out before it is sent, on all nodes.

verl itself looks for its tracker on the node where its controller happens to run, and lets each rank load its own
file from its own node's disk. With disks of their own that ends in a job that begins anew without a word, or in one
that breaks off after minutes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cloudrl.checkpoints.sources import ClusterSource
from cloudrl.errors import CheckpointError
from cloudrl.jobs.compatibility import GPUS, NODES
from cloudrl.jobs.overrides import integer, parse_overrides
from cloudrl.transport import inspect_cluster
from cloudrl.verl.keys import has_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudrl.checkpoints.inventory import Checkpoint, Inventory
    from cloudrl.jobs import SubmitOptions
    from cloudrl.spec import Job
    from cloudrl.spec.shape import ClusterShape
    from cloudrl.transport import Connection

_MODE, _FROM = "trainer.resume_mode", "trainer.resume_from_path"
_DECIDED_BY = (_MODE, _FROM, "trainer.default_local_dir")
_NOT_NEEDED = "huggingface/config.json"  # for a model, not to go on
_ROOM = "checkpoints"
_ONE_SAVE_S = 60.0
"""Ranks of one save write within this time of each other, as far as the clocks of their nodes agree."""


@dataclass(frozen=True)
class Resume:
    """Where a job goes on.

    Attributes:
        step: its number.
        folder: `global_step_N`, absolute, the same on every node.
        notes: what the user should know, a sentence each.
    """

    step: int
    folder: str
    notes: tuple[str, ...] = ()


def apply_resume(
    connection: Connection, job: Job, options: SubmitOptions
) -> tuple[SubmitOptions, tuple[str, ...]]:
    """Have a job with a run's name go on from the newest step that it can load, and say which.

    Unchanged where the user decides by overrides, for a plain Ray cluster, and for a verl that cannot go on.

    Raises:
        CheckpointError: the run has steps, and none of them can be loaded where the job is going to run.
        ConnectionFailed: the cluster, or a node that may have the newest step, does not answer.
    """
    given = parse_overrides(job.with_overrides(options.overrides).overrides)
    agent = connection.agent()
    if options.name is None or agent is None or given.keys() & set(_DECIDED_BY):
        return options, ()
    cluster = inspect_cluster(connection)
    if cluster.checkpoint_dir is None or not has_key(cluster.verl_version or job.verl, _MODE):
        return options, ()
    if integer(given.get(NODES)) not in (None, cluster.nodes):  # nobody knows yet on which of the nodes
        return options, ()
    cluster = replace(cluster, gpus_per_node=integer(given.get(GPUS)) or cluster.gpus_per_node)
    addresses = {int(node["rank"]): str(node["ip"]) for node in agent.status()["nodes"]}
    inventory = ClusterSource(connection).inventory()
    found = plan_resume(inventory, options.name, cluster, addresses)
    if found is None:
        return options, ()
    overrides = {**options.overrides, _MODE: "resume_path", _FROM: found.folder}
    said = f"run {options.name!r} continues from step {found.step}"
    return replace(options, overrides=overrides), (said, *found.notes)


def plan_resume(
    inventory: Inventory, run: str, cluster: ClusterShape, addresses: Mapping[int, str]
) -> Resume | None:
    """The newest step that all ranks can load; None for a run without any, and for Megatron's, which are verl's matter.

    Args:
        inventory: of the cluster.
        run: its name.
        cluster: as it is now, with as many GPUs a node as the job takes.
        addresses: node -> IP address.

    Raises:
        CheckpointError: there are steps, and none can be loaded.
        ConnectionFailed: a node is silent that may have the newest one.
    """
    steps: dict[int, list[Checkpoint]] = defaultdict(list)
    for each in inventory.checkpoints:
        if each.run == run and all(location.room == _ROOM for location in each.locations):
            steps[each.step].append(each)
    if any(each.is_megatron for found in steps.values() for each in found):
        return None
    inventory.refuse_silent("it may have the newest step of the run", "Try again when it answers")
    if not steps:
        return None
    world_size, order = cluster.nodes * cluster.gpus_per_node, _verl_node_order(addresses)
    problems = []
    for step in _candidates(steps):
        roles = [each for each in steps[step] if each.world_size == world_size] or steps[step]
        blockers = [text for each in roles for text in _blockers(each, world_size, order)]
        if not blockers:
            folder = f"{cluster.checkpoint_dir}/{run}/global_step_{step}"
            return Resume(step, folder, _notes(roles[0], order))
        problems.append(f"step {step}: {blockers[0]}")
    shown = "; ".join(problems[:3])
    raise CheckpointError(
        f"run {run!r} cannot go on: {shown}",
        hint=f"See it: cloudrl checkpoints list {cluster.name}\nBegin anew: another --name\n"
        f"Or in its folder, from the start: {_MODE}=disable",
    )


def _candidates(steps: Mapping[int, Sequence[Checkpoint]]) -> list[int]:
    """Steps in the order in which they are tried: as `Inventory.select` chooses the latest, then the lower ones.

    That is the step of the newest tracker, or a higher one that is newer: an earlier attempt of the same name may have
    left higher ones, which its user has given up.
    """
    tracked = [step for step, found in steps.items() if any(each.resumes for each in found)]
    if not tracked:
        return sorted(steps, reverse=True)
    [step] = tracked
    at = max(each.modified_at for each in steps[step])
    fitting = [each for each in steps if each <= step or max(one.modified_at for one in steps[each]) > at]
    return sorted(fitting, reverse=True)


def _blockers(saved: Checkpoint, world_size: int, order: Sequence[int]) -> list[str]:
    """Why a role of a step cannot be loaded by so many ranks on nodes in this order."""
    if saved.world_size != world_size:
        return [f"{saved.world_size} ranks have saved the {saved.role}, and {world_size} would load it"]
    gaps = [each for each in saved.missing if each != _NOT_NEEDED]
    if gaps:
        return [f"the {saved.role} lacks {gaps[0]}"]
    return _misplaced_files(saved, world_size // len(order), order)


def _verl_node_order(addresses: Mapping[int, str]) -> Sequence[int]:
    """Nodes as verl numbers its ranks: by address, as text (verl 0.9.1, single_controller/ray/base.py)."""
    return sorted(addresses, key=lambda node: addresses[node])


def _misplaced_files(saved: Checkpoint, per_node: int, order: Sequence[int]) -> list[str]:
    """Files that lie on another node than the one where their rank is going to run."""
    for kind in ("model", "optim", "extra_state"):
        for rank, file in saved.shards(kind).items():
            if rank >= (saved.world_size or 0):
                continue
            node, name = order[rank // per_node], file.path.rpartition("/")[2]
            same = [copy for copy in saved.files[name] if file.modified_at - copy.modified_at <= _ONE_SAVE_S]
            if not any(node in copy.location.ranks for copy in same):
                return [
                    f"rank {rank} is going to run on node {node}, and its {name} lies on {file.location.short}"
                ]
    return []


def _notes(saved: Checkpoint, nodes: Sequence[int]) -> tuple[str, ...]:
    """The controller runs on any node, and reads the state of the data loader from its disk."""
    held = {node for copy in saved.step_files.get("data.pt", ()) for node in copy.location.ranks}
    if set(nodes) <= held:
        return ()
    where = f"lies on node {', '.join(map(str, sorted(held)))} alone" if held else "was not found"
    return (f"its data.pt {where}: where verl's controller runs elsewhere, the data begins anew",)
