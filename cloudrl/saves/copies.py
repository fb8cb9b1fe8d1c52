"""Which node is to have a copy of which file of a step, so that no machine is the only one that has it. Pure.

Nodes are partners in pairs, and the last three of an odd number in a ring: two nodes lost at once then lose data less
often than in a ring of all. A copy stands at the same path as the file itself, so that every list, resume and merge
counts it. Before a resume the shards of a rank are to be on the node where that rank is going to run.

What is safe is counted from the copies that are seen now; nothing of it is remembered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cloudrl.protocol.routes import CHECKPOINTS
from cloudrl.protocol.step_copies import CopyOrder, WantedFile
from cloudrl.saves.inventory import Checkpoint, Inventory, resume_order
from cloudrl.saves.names import RECORD, SHARD, is_ours, step_folder
from cloudrl.saves.places import FileCopy

_ONE_SAVE_S = 60.0
"""A copy has the date of its original; what is older by more is of another save."""
SAFE_COPIES = 2


@dataclass(frozen=True)
class CopyPlan:
    """What is missing where, of the newest step that is whole.

    Attributes:
        step: its number.
        needed: without these no rank can go on from the step.
        spare: these make it safe.
        is_safe: whether it is safe now.
    """

    step: int
    needed: tuple[CopyOrder, ...] = ()
    spare: tuple[CopyOrder, ...] = ()
    is_safe: bool = False


def partner_of(rank: int, ranks: Sequence[int]) -> int:
    """The node that keeps the copies of another one; the node itself where there is only one.

    Args:
        rank: of the node.
        ranks: of all nodes that have disks of their own, in order.
    """
    place, count = list(ranks).index(rank), len(ranks)
    in_ring = min(3, count) if count % 2 else 0
    first = count - in_ring
    return ranks[place ^ 1] if place < first else ranks[first + (place - first + 1) % in_ring]


def count_copies(roles: Sequence[Checkpoint]) -> int:
    """How many nodes have every file of a step, given all its roles; each file may be on other nodes."""
    return min((len(_nodes(_of_one_save(copies))) for _, copies in _files(roles)), default=0)


def is_safe(roles: Sequence[Checkpoint]) -> bool:
    """Whether a whole step outlives the loss of any one machine, as far as is seen now."""
    return all(role.complete for role in roles) and count_copies(roles) >= SAFE_COPIES


def plan_copies(
    inventory: Inventory, run: str, *, world_size: int, addresses: Mapping[int, str], order: Sequence[int] = ()
) -> CopyPlan | None:
    """What is to be copied of the newest whole step of a run; None without such a step, and for Megatron's.

    Args:
        inventory: of the cluster.
        run: its name.
        world_size: ranks of the job.
        addresses: node -> IP address, of all nodes that may keep copies.
        order: nodes on which the job trains, in the order of its ranks, if its command puts them there and the
            controller on node 0; empty where all nodes train, as verl counts them. Each runs as many ranks as the
            others.
    """
    found = _newest_whole(inventory, run, world_size)
    return None if found is None else _plan(*found, world_size, addresses, order)


def choose_nodes(
    inventory: Inventory, run: str, *, world_size: int, count: int, nodes: Iterable[int]
) -> tuple[int, ...]:
    """Nodes for a job that does not train on all of them, in the order of its ranks.

    They are those that have most of what their ranks need of the newest whole step; without one, the first nodes.

    Args:
        inventory: of the cluster.
        run: its name.
        world_size: ranks of the job.
        count: how many nodes it takes; they run as many ranks each.
        nodes: that it may take.
    """
    held: dict[tuple[int, int], int] = defaultdict(int)
    _, roles = _newest_whole(inventory, run, world_size) or (0, [])
    for name, copies in _files(roles) if roles else ():
        if (match := SHARD.fullmatch(name)) is not None:
            group = int(match[match.re.groups]) // (world_size // count)
            for node in _nodes(_of_one_save(copies)):
                held[group, node] += copies[0].size_bytes
    free, chosen = sorted(nodes), list[int]()
    for group in range(count):
        chosen.append(max(free, key=lambda node, group=group: held[group, node]))  # type: ignore[misc]
        free.remove(chosen[-1])
    return tuple(chosen)


def _newest_whole(inventory: Inventory, run: str, world_size: int) -> tuple[int, list[Checkpoint]] | None:
    steps: dict[int, list[Checkpoint]] = defaultdict(list)
    for checkpoint in inventory.checkpoints:
        if checkpoint.run == run and all(location.root == CHECKPOINTS for location in checkpoint.locations):
            steps[checkpoint.step].append(checkpoint)
    if any(role.is_megatron for roles in steps.values() for role in roles):
        return None
    for step in resume_order(steps):
        roles = steps[step]
        if all(role.complete and role.world_size == world_size for role in roles):
            return step, roles
    return None


def _plan(
    step: int, roles: Sequence[Checkpoint], world_size: int, addresses: Mapping[int, str], placed: Sequence[int]
) -> CopyPlan:
    # verl numbers its ranks by the nodes' addresses, as text (verl 0.9.1, single_controller/ray/base.py)
    order, ranks = placed or sorted(addresses, key=lambda node: addresses[node]), sorted(addresses)
    controllers = {0} if placed else set(order)
    needed: dict[tuple[int, int], list[WantedFile]] = defaultdict(list)
    spare: dict[tuple[int, int], list[WantedFile]] = defaultdict(list)
    for name, all_copies in _files(roles):
        copies = _of_one_save(all_copies)
        having, source = _nodes(copies), copies[0].location.ranks[0]
        file = WantedFile(copies[0].path, copies[0].size_bytes, copies[0].modified_at)
        readers = controllers if name in roles[0].step_files else _readers(name, world_size, order)
        for node in sorted(readers - having):
            needed[node, source].append(file)
        if len(having | readers) < SAFE_COPIES and source in addresses:
            spare[partner_of(source, ranks), source].append(file)
    folder = step_folder(roles[0].run, step)
    return CopyPlan(step, tuple(_orders(folder, needed)), tuple(_orders(folder, spare)), is_safe(roles))


def _orders(folder: str, wanted: Mapping[tuple[int, int], Sequence[WantedFile]]) -> Iterator[CopyOrder]:
    for (node, source), files in sorted(wanted.items()):
        if node != source:
            # a record speaks of files that are there
            yield CopyOrder(node, source, folder, tuple(sorted(files, key=lambda file: (_is_record(file), file.path))))


def _is_record(file: WantedFile) -> bool:
    return RECORD.fullmatch(file.path.rpartition("/")[2]) is not None


def _readers(name: str, world_size: int, order: Sequence[int]) -> set[int]:
    """Nodes on which a resume looks for a file of a role: a shard where its rank runs."""
    match = SHARD.fullmatch(name) or RECORD.fullmatch(name)
    return set() if match is None else {order[int(match[match.re.groups]) // (world_size // len(order))]}


def _files(roles: Sequence[Checkpoint]) -> Iterator[tuple[str, tuple[FileCopy, ...]]]:
    """(name, copies) of all that a step consists of: files of ranks that its world size has, and their records."""
    yield from roles[0].step_files.items()
    for role in roles:
        for name, copies in role.files.items():
            match = SHARD.fullmatch(name) or RECORD.fullmatch(name)
            is_spare = match is not None and int(match[match.re.groups]) >= (role.world_size or 0)
            if not is_spare and (match is not None or not is_ours(name)):
                yield name, copies


def _of_one_save(copies: Sequence[FileCopy]) -> list[FileCopy]:
    """The newest whole copy, and those that are equal to it as far as size and date tell."""
    first = next((copy for copy in copies if not copy.damage), copies[0])
    return [
        copy
        for copy in copies
        if not copy.damage
        and copy.size_bytes == first.size_bytes
        and abs(first.modified_at - copy.modified_at) <= _ONE_SAVE_S
    ] or [first]


def _nodes(copies: Sequence[FileCopy]) -> set[int]:
    return {rank for copy in copies for rank in copy.location.ranks}
