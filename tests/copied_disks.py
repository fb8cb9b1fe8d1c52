"""Nodes in memory that save a run, and copy what they are ordered to."""

import random
from typing import Any

from node_inventories import node, run, step

from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.copies import count_copies, plan_copies
from cloudrl.saves.resume import Ranks, plan_resume

ADDRESSES = {rank: f"10.0.0.{rank + 1}" for rank in range(8)}


class Disks:
    """Nodes that save a run, a rank each, and copy what they are ordered to.

    Args:
        count: nodes.
        seed: of what goes wrong.
    """

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count, self.random = count, random.Random(seed)
        self.files: list[dict[str, dict[str, Any]]] = [{} for _ in range(count)]

    def save(self, number: int) -> None:
        for rank in range(self.count):
            said = step(number, (rank,), self.count, config=rank == 0, data=rank == 0)
            for place, files in (("", said["files"]), ("actor/", said["roles"][0]["files"])):
                self.files[rank] |= {f"global_step_{number}/{place}{file['path']}": file for file in files}

    @property
    def addresses(self) -> dict[int, str]:
        return {rank: ADDRESSES[rank] for rank in range(self.count)}

    def inventory(self) -> Any:
        return aggregate([node(rank, run("night", *self._steps(rank))) for rank in range(self.count)])

    def _steps(self, rank: int) -> list[dict[str, Any]]:
        steps: dict[str, dict[str, Any]] = {}
        for path, file in self.files[rank].items():
            folder, _, name = path.partition("/")
            number = int(folder.rpartition("_")[2])
            said = steps.setdefault(folder, {"step": number, "files": [], "roles": []})
            if name.startswith("actor/"):
                if not said["roles"]:
                    said["roles"].append({"role": "actor", "folder": "actor", "files": [], "saves": []})
                said["roles"][0]["files"].append({**file, "path": name.removeprefix("actor/")})
            else:
                said["files"].append({**file, "path": name})
        return list(steps.values())

    def plan(self) -> Any:
        return plan_copies(self.inventory(), "night", world_size=self.count, addresses=self.addresses)

    def carry_out(self, orders: Any, *, failing: float = 0.0) -> None:
        """An order is done as a whole, or not at all."""
        for order in orders:
            if self.random.random() >= failing:
                for file in order.files:
                    name = file.path.removeprefix("night/")
                    self.files[order.rank][name] = dict(self.files[order.source][name])

    def copies(self) -> int:
        return count_copies(self.inventory().checkpoints)

    def resumed_step(self) -> int:
        plan = plan_resume(
            self.inventory(),
            "night",
            ranks=Ranks(self.count, self.count, self.addresses),
            checkpoint_dir="/c",
            cluster="c",
        )
        return 0 if plan is None else plan.step
