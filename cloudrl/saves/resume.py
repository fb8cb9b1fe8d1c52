"""From where a job of a run's name goes on: planned before it is sent, from what is on all nodes. Pure.

verl itself looks for its tracker on the node where its controller happens to run, and lets each rank load its own
file from its own node's disk. With disks of their own that ends in a job that begins anew without a word, or in one
that breaks off after minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cloudrl.errors import CheckpointError
from cloudrl.protocol.folders import TRAINING_NODES
from cloudrl.protocol.ranks import ranks_text
from cloudrl.saves.inventory import Checkpoint, Inventory, resume_order
from cloudrl.saves.names import (
    DATA,
    FSDP_CONFIG,
    HUGGINGFACE,
    KINDS,
    RESUME_FROM,
    RESUME_MODE,
    find_data,
    on_one_line,
    step_folder,
)
from cloudrl.saves.places import FileCopy, places_text

_NOT_NEEDED = (HUGGINGFACE, FSDP_CONFIG)  # for a model, not to go on
_ONE_SAVE_S = 60.0
"""Ranks of one save write within this time of each other, as far as the clocks of their nodes agree."""


@dataclass(frozen=True)
class ResumePlan:
    """Where a job goes on.

    Attributes:
        step: its number.
        folder: `global_step_N`, absolute, the same on every node.
        notes: what the user should know, a sentence each.
        addresses: of the nodes that have to train, in the order of their ranks; empty where verl's own choice will do.
    """

    step: int
    folder: str
    notes: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    @property
    def overrides(self) -> dict[str, str]:
        """What has verl do it."""
        return {RESUME_MODE: "resume_path", RESUME_FROM: self.folder}

    @property
    def variables(self) -> dict[str, str]:
        """What has its ranks run where their files are."""
        return {TRAINING_NODES: ",".join(self.addresses)} if self.addresses else {}


@dataclass(frozen=True)
class Ranks:
    """The ranks of a job that is to go on, and the nodes on which they may run.

    Attributes:
        count: how many.
        nodes: how many nodes train, each as many ranks as the others.
        addresses: node -> IP address, of all nodes with GPUs.
        are_placed: whether the job's command puts ranks on nodes that it is given, and the controller on node 0
            (`node/main_on_head.py`). Otherwise verl counts ranks by the nodes' addresses as text (verl 0.9.1,
            single_controller/ray/base.py), and all nodes train.
    """

    count: int
    nodes: int
    addresses: Mapping[int, str]
    are_placed: bool = False

    @property
    def order(self) -> list[int]:
        """All nodes as verl counts them."""
        return sorted(self.addresses, key=lambda node: self.addresses[node])


def plan_resume(
    inventory: Inventory, run: str, *, ranks: Ranks, checkpoint_dir: str, cluster: str
) -> ResumePlan | None:
    """The newest step that all ranks can load; None for a run without any.

    None also for Megatron's saves, which are verl's matter, unless the step that verl would take is damaged.

    Args:
        inventory: of the cluster.
        run: its name.
        ranks: of the job that is to go on.
        checkpoint_dir: the folder of checkpoints, the same on every node.
        cluster: its name, for messages.

    Raises:
        CheckpointError: there are steps, and none can be loaded.
        ConnectionFailed: a node is silent that may have the newest one.
    """
    steps = inventory.saved_steps(run)
    if any(checkpoint.is_megatron for roles in steps.values() for checkpoint in roles):
        return _instead_of_damaged(steps, run, checkpoint_dir, cluster)
    inventory.refuse_silent("it may have the newest step of the run", "Try again when it answers")
    if not steps:
        return None
    problems: dict[int, str] = {}
    # a node that has cut one file of a save may have cut others, so a step with a damaged config comes last
    for step, spared in [(step, spared) for spared in ((), _NOT_NEEDED) for step in resume_order(steps)]:
        roles = [checkpoint for checkpoint in steps[step] if checkpoint.world_size == ranks.count] or steps[step]
        blockers = [text for role in roles for text in _blockers(role, ranks.count, spared)]
        nodes = () if blockers else _nodes_with_all(roles, ranks)
        if nodes is not None and not blockers:
            notes = (*_skipped(problems, step), *_notes(roles[0], ranks))
            addresses = tuple(ranks.addresses[node] for node in nodes)
            return ResumePlan(step, f"{checkpoint_dir}/{step_folder(run, step)}", notes, addresses)
        blockers = blockers or [text for role in roles for text in _misplaced(role, ranks)]
        problems[step] = f"step {step}: {blockers[0]}"
    raise _no_step(run, "; ".join([*problems.values()][:3]), cluster)


def _no_step(run: str, why: str, cluster: str) -> CheckpointError:
    return CheckpointError(
        f"run {run!r} cannot go on: {why}",
        hint=f"See it: cloudrl checkpoints list --cluster {cluster}\nBegin anew: another --name\n"
        f"Or in its folder, from the start: {RESUME_MODE}=disable",
    )


def _instead_of_damaged(
    steps: Mapping[int, Sequence[Checkpoint]], run: str, checkpoint_dir: str, cluster: str
) -> ResumePlan | None:
    """Another step of Megatron's, where verl's tracker names a damaged one; which rank loads what is verl's matter."""
    damaged = damaged_resume(steps)
    if damaged is None:
        return None
    if damaged.instead is None:
        raise _no_step(run, damaged.why, cluster)
    folder = f"{checkpoint_dir}/{step_folder(run, damaged.instead)}"
    return ResumePlan(damaged.instead, folder, (f"{damaged.why}, so it was not taken",))


class DamagedResume(NamedTuple):
    """A damaged step that verl's tracker names.

    Attributes:
        why: The step and what is wrong with it.
        instead: The newest whole step. None if every step is damaged or incomplete.
    """

    why: str
    instead: int | None


def damaged_resume(steps: Mapping[int, Sequence[Checkpoint]]) -> DamagedResume | None:
    """Whether verl would go on from a damaged step, of the roles of each step of a run."""
    resumed = next((step for step, roles in steps.items() if any(role.resumes for role in roles)), None)
    flaws = [
        phrase for checkpoint in (steps[resumed] if resumed is not None else ()) for phrase in checkpoint.damage_phrases
    ]
    if not flaws:
        return None
    whole = (step for step in resume_order(steps) if all(checkpoint.complete for checkpoint in steps[step]))
    return DamagedResume(f"step {resumed}: {flaws[0]}", next(whole, None))


def _skipped(problems: Mapping[int, str], chosen: int) -> tuple[str, ...]:
    """Why a step that is newer, or damaged besides, was not taken or deserves a look."""
    return tuple(
        f"{text}, {'which a resume does not need' if step == chosen else 'so it was not taken'}"
        for step, text in problems.items()
        if step >= chosen
    )


def _blockers(saved: Checkpoint, world_size: int, spared: tuple[str, ...]) -> list[str]:
    """Why a role of a step cannot be loaded by so many ranks, wherever they run.

    Args:
        saved: The role.
        world_size: Ranks that are going to load it.
        spared: Beginnings of names of files that may be damaged.
    """
    if saved.world_size != world_size:
        return [f"{saved.world_size} ranks have saved the {saved.role}, and {world_size} would load it"]
    gaps = [gap for gap in saved.missing if not gap.startswith(_NOT_NEEDED)]
    if gaps:
        return [f"the {saved.role} lacks {gaps[0]}"]
    return [
        f"{on_one_line(name)} of the {saved.role} {text}"
        for name, text in saved.damaged.items()
        if not name.startswith(spared)
    ]


class _RankFile(NamedTuple):
    """A file of a rank, and the nodes that have it."""

    rank: int
    copy: FileCopy
    nodes: frozenset[int]


def _rank_files(saved: Checkpoint) -> Iterator[_RankFile]:
    """Each file of each rank, with the nodes that have what the same save wrote of it."""
    for kind in KINDS:
        for rank, file in saved.shards(kind).items():
            if rank < (saved.world_size or 0):
                copies = saved.files[file.path.rpartition("/")[2]]
                same = [copy for copy in copies if file.modified_at - copy.modified_at <= _ONE_SAVE_S]
                nodes = frozenset(node for copy in same if not copy.damage for node in copy.location.ranks)
                yield _RankFile(rank, file, nodes)


def _nodes_with_all(roles: Sequence[Checkpoint], ranks: Ranks) -> tuple[int, ...] | None:
    """Nodes that have all files of their ranks, in that order; empty where verl's own choice has them, None without."""
    per_node = ranks.count // ranks.nodes
    having = [set(ranks.addresses) for _ in range(ranks.nodes)]
    for file in (file for role in roles for file in _rank_files(role)):
        having[file.rank // per_node] &= file.nodes
    order = ranks.order
    any_will_do = all(nodes == set(order) for nodes in having)
    is_in_order = len(order) == ranks.nodes and all(order[group] in nodes for group, nodes in enumerate(having))
    if any_will_do or is_in_order:
        return ()
    return _one_each([sorted(nodes, key=order.index) for nodes in having]) if ranks.are_placed else None


def _one_each(candidates: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """A node of its own out of the candidates of each group of ranks; None where they do not go round."""
    taken_by: dict[int, int] = {}

    def finds(group: int, tried: set[int]) -> bool:
        for node in candidates[group]:
            if node not in tried:
                tried.add(node)
                if node not in taken_by or finds(taken_by[node], tried):
                    taken_by[node] = group
                    return True
        return False

    if not all(finds(group, set()) for group in range(len(candidates))):
        return None
    return tuple(sorted(taken_by, key=lambda node: taken_by[node]))


def _misplaced(saved: Checkpoint, ranks: Ranks) -> Iterator[str]:
    """Why no nodes have all files of a role where its ranks run."""
    per_node = ranks.count // ranks.nodes
    if ranks.are_placed:
        yield f"no choice of {ranks.nodes} of the nodes has all files of its ranks: {places_text(saved.locations)}"
        return
    for rank, copy, nodes in _rank_files(saved):
        node, name = ranks.order[rank // per_node], copy.path.rpartition("/")[2]
        if node not in nodes:
            yield f"rank {rank} is going to run on node {node}, and its {name} is on {copy.location.short}"


def _notes(saved: Checkpoint, ranks: Ranks) -> tuple[str, ...]:
    """The controller reads the state of the data loader from its disk, and runs on any node unless it is placed."""
    name = find_data(saved.step_files) or DATA
    having = {node for copy in saved.step_files.get(name, ()) for node in copy.location.ranks}
    if ({0} if ranks.are_placed else set(ranks.addresses)) <= having:
        return ()
    where = f"is on {ranks_text(having, 'node')} alone" if having else "was not found"
    return (f"its {name} {where}: where verl's controller runs elsewhere, the data begins anew",)
