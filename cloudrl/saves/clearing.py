"""Which copies of a durable job's steps are not needed any more. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from cloudrl.protocol.step_copies import ClearOrder, WantedFile
from cloudrl.saves.copies import files_of_step, is_safe, nodes_of, of_one_save, places_of, readers
from cloudrl.saves.inventory import Inventory, resume_order
from cloudrl.saves.names import step_folder


def plan_clearing(
    inventory: Inventory, run: str, *, world_size: int, addresses: Mapping[int, str], order: Sequence[int] = ()
) -> tuple[ClearOrder, ...]:
    """Copies of steps before the newest one that is safe; of every file one node keeps what it has.

    A node clears what it has copied itself, and nothing that its own ranks have saved. Copies of steps that stay for
    good stay there.

    Args:
        inventory: of all nodes; what a silent node has is not known.
        run: its name.
        world_size: ranks of the job.
        addresses: node -> IP address, of all nodes that may keep copies.
        order: see `plan_copies`.
    """
    steps = inventory.saved_steps(run)
    safe = next((step for step in resume_order(steps) if is_safe(steps[step])), None)
    if safe is None:
        return ()
    places, orders = places_of(addresses, order), list[ClearOrder]()
    for step in sorted(earlier for earlier in steps if earlier < safe and not steps[earlier][0].kept):
        spare: dict[int, list[WantedFile]] = defaultdict(list)
        for name, all_copies in files_of_step(steps[step]):
            having = nodes_of(of_one_save(all_copies))
            keeper = min(having, key=lambda node: (node not in readers(name, steps[step], world_size, places), node))
            for copy in all_copies:
                # a folder that several nodes have is no copy
                if keeper not in copy.location.ranks and len(copy.location.ranks) == 1:
                    spare[copy.location.ranks[0]].append(WantedFile(copy.path, copy.size_bytes, copy.modified_at))
        folder = step_folder(run, step)
        orders += [ClearOrder(node, folder, tuple(files)) for node, files in sorted(spare.items())]
    return tuple(orders)
