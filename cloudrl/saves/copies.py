"""Which node is to have a copy of which file of a step, so that no machine is the only one that has it. Pure.

Nodes are partners in pairs, and the last three of an odd number in a ring: two nodes lost at once then lose data less
often than in a ring of all. A copy stands at the same path as the file itself, so that every list, resume and merge
counts it. Before a resume the shards of a rank are to be on the node where that rank is going to run.

What is safe is counted from the copies that are seen now; nothing of it is remembered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cloudrl.protocol.mirrors import MIRROR_RANK
from cloudrl.protocol.step_copies import CopyOrder, WantedFile
from cloudrl.saves.inventory import Checkpoint, Inventory, resume_order
from cloudrl.saves.names import RECORD, SHARD, is_ours, step_folder
from cloudrl.saves.places import FileCopy
from cloudrl.units import size_text

_ONE_SAVE_S = 60.0
"""A copy has the date of its original; what is older by more is of another save."""
SAFE_COPIES = 2
SPARE_BYTES = 1 << 30
"""Left free on a disk that takes copies, for whatever else writes there."""


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


def partners_stay(ranks: Sequence[int], going: Container[int]) -> bool:
    """Whether a copy on its partner outlives each node that is about to go.

    Args:
        ranks: of all nodes that have disks of their own, in order.
        going: nodes whose machines are taken back.
    """
    return len(ranks) > 1 and not any(rank in going and partner_of(rank, ranks) in going for rank in ranks)


def count_copies(roles: Sequence[Checkpoint]) -> int:
    """How many nodes have every file of a step, given all its roles; each file may be on other nodes."""
    return min((len(nodes_of(of_one_save(copies))) for _, copies in files_of_step(roles)), default=0)


def is_safe(roles: Sequence[Checkpoint]) -> bool:
    """Whether a whole step outlives the loss of any one machine, as far as is seen now."""
    return all(role.complete for role in roles) and count_copies(roles) >= SAFE_COPIES


def refuse_without_room(missing_bytes: int, free_bytes: int) -> None:
    """Leave a node room for its own next save, which is worth more than a copy.

    Raises:
        OSError: there is too little for both.
    """
    if 2 * missing_bytes + SPARE_BYTES > free_bytes:
        raise OSError(
            f"{size_text(missing_bytes)} are to be copied here, and as much is kept free for the next save; "
            f"{size_text(free_bytes)} are free"
        )


def refuse_changed(file: WantedFile, crc32: int, sums: tuple[int, int]) -> None:
    """Compare what was written with the original, as it is on its own disk now.

    Args:
        file: as it was ordered.
        crc32: of what was written.
        sums: size in bytes and CRC-32 of the original.

    Raises:
        OSError: they differ.
    """
    if sums != (file.size_bytes, crc32):
        raise OSError(f"{file.path} has changed while it was copied, or was damaged on its way")


def plan_copies(
    inventory: Inventory,
    run: str,
    *,
    world_size: int,
    addresses: Mapping[int, str],
    order: Sequence[int] = (),
    first: int | None = None,
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
        first: a step of which some is copied already, to be finished before a newer one as long as it is whole.
    """
    found = newest_whole_step(inventory, run, world_size, first)
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
    _, roles = newest_whole_step(inventory, run, world_size) or (0, [])
    for name, copies in files_of_step(roles) if roles else ():
        if (match := SHARD.fullmatch(name)) is not None:
            group = int(match[match.re.groups]) // (world_size // count)
            for node in nodes_of(of_one_save(copies)):
                held[group, node] += copies[0].size_bytes
    free, chosen = sorted(nodes), list[int]()
    for group in range(count):
        chosen.append(max(free, key=lambda node, group=group: held[group, node]))  # type: ignore[misc]
        free.remove(chosen[-1])
    return tuple(chosen)


def newest_whole_step(
    inventory: Inventory, run: str, world_size: int, first: int | None = None
) -> tuple[int, list[Checkpoint]] | None:
    """(step, its roles) of the newest step that so many ranks have saved to the end, or of `first` if that is whole."""
    steps = inventory.saved_steps(run)
    if any(role.is_megatron for roles in steps.values() for role in roles):
        return None
    for step in sorted(resume_order(steps), key=lambda step: step != first):
        roles = [role for role in steps[step] if role.world_size == world_size]  # it may be there for others, too
        if {role.role for role in roles} == {role.role for role in steps[step]} and all(r.complete for r in roles):
            return step, roles
    return None


def _plan(
    step: int, roles: Sequence[Checkpoint], world_size: int, addresses: Mapping[int, str], placed: Sequence[int]
) -> CopyPlan:
    places, ranks = places_of(addresses, placed), sorted(addresses)
    needed: dict[tuple[int, int], list[WantedFile]] = defaultdict(list)
    spare: dict[tuple[int, int], list[WantedFile]] = defaultdict(list)
    attempt = ""
    for name, all_copies in files_of_step(roles):
        copies = of_one_save(all_copies)
        chosen = next((copy for copy in copies if MIRROR_RANK not in copy.location.ranks), copies[0])
        having, source = nodes_of(copies), chosen.location.ranks[0]
        attempt = chosen.location.folder if source == MIRROR_RANK else attempt
        file = WantedFile(chosen.path, chosen.size_bytes, chosen.modified_at)
        # what no node has goes to that of rank 0, as a save puts it there
        looking = readers(name, roles, world_size, places) or ({places.order[0]} if having == {MIRROR_RANK} else set())
        for node in sorted(looking - having):
            needed[node, source].append(file)
        if len(having | looking) < SAFE_COPIES and source in addresses:
            spare[partner_of(source, ranks), source].append(file)
    folder = step_folder(roles[0].run, step)
    is_safe_now = is_safe(roles)
    return CopyPlan(step, tuple(_orders(folder, needed, attempt)), tuple(_orders(folder, spare)), is_safe_now)


def _orders(
    folder: str, wanted: Mapping[tuple[int, int], Sequence[WantedFile]], attempt: str = ""
) -> Iterator[CopyOrder]:
    for (node, source), files in sorted(wanted.items()):
        if node != source:
            # a record speaks of files that are there
            ordered = tuple(sorted(files, key=lambda file: (_is_record(file), file.path)))
            yield CopyOrder(node, source, folder, ordered, attempt=attempt if source == MIRROR_RANK else "")


def _is_record(file: WantedFile) -> bool:
    return RECORD.fullmatch(file.path.rpartition("/")[2]) is not None


@dataclass(frozen=True)
class Places:
    """Where a job runs: its nodes in the order of their ranks, and those that its controller may be on."""

    order: tuple[int, ...]
    controllers: frozenset[int]


def places_of(addresses: Mapping[int, str], order: Sequence[int] = ()) -> Places:
    """The places of a job, given the nodes' addresses and what `plan_copies` calls its order."""
    # verl numbers its ranks by the nodes' addresses, as text (verl 0.9.1, single_controller/ray/base.py)
    nodes = tuple(order or sorted(addresses, key=lambda node: addresses[node]))
    return Places(nodes, frozenset({0} if order else nodes))


def readers(name: str, roles: Sequence[Checkpoint], world_size: int, places: Places) -> set[int]:
    """Nodes on which a resume looks for a file: a shard where its rank runs, the data's where the controller may be."""
    match = SHARD.fullmatch(name) or RECORD.fullmatch(name)
    if match is not None:
        return {places.order[int(match[match.re.groups]) // (world_size // len(places.order))]}
    return set(places.controllers) if any(name in role.step_files for role in roles) else set()


def files_of_step(roles: Sequence[Checkpoint]) -> Iterator[tuple[str, tuple[FileCopy, ...]]]:
    """(name, copies) of all that a step consists of: files of ranks that its world size has, and their records."""
    yield from roles[0].step_files.items()
    for role in roles:
        for name, copies in role.files.items():
            match = SHARD.fullmatch(name) or RECORD.fullmatch(name)
            is_spare = match is not None and int(match[match.re.groups]) >= (role.world_size or 0)
            if not is_spare and (match is not None or not is_ours(name)):
                yield name, copies


def of_one_save(copies: Sequence[FileCopy]) -> list[FileCopy]:
    """The newest whole copy, and those that are equal to it as far as size and date tell."""
    first = next((copy for copy in copies if not copy.damage), copies[0])
    return [
        copy
        for copy in copies
        if not copy.damage
        and copy.size_bytes == first.size_bytes
        and abs(first.modified_at - copy.modified_at) <= _ONE_SAVE_S
    ] or [first]


def nodes_of(copies: Sequence[FileCopy]) -> set[int]:
    """The nodes that have any of these copies."""
    return {rank for copy in copies for rank in copy.location.ranks}
