"""Which copies rank 0 orders first, and what it says of those that fail."""

from typing import Any

from copied_disks import Disks

from cloudrl.node.step_copies import StepCopies
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.durable_jobs import Attempt, DurableJob
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.step_copies import CopyOrder, CopyState
from cloudrl.saves.inventory import Inventory


class _FullNode:
    """An agent without room, whose sizes differ at each try."""

    def __init__(self) -> None:
        self.tries = 0

    def request(self, *_: Any, **__: Any) -> None:
        return None

    def call(self, *_: Any) -> CopyState:
        self.tries += 1
        return CopyState(error=f"{self.tries}.5 kB are to be copied here; {740 + self.tries} kB are free")


def test_a_copy_without_room_is_told_once_in_a_while() -> None:
    said, at, agent = list[str](), [0.0], _FullNode()
    reports = [NodeReport(rank, f"10.0.0.{rank + 1}") for rank in (0, 1)]
    copies = StepCopies(
        lambda: reports, lambda _: agent, Inventory, is_urgent=lambda: False, say=said.append, clock=lambda: at[0]
    )  # type: ignore[arg-type]
    for _ in range(61):
        copies.order(CopyOrder(1, 0, "night/global_step_2", ()))
        at[0] += 5.0

    assert agent.tries == 61
    assert said == [
        f"warning: night/global_step_2 is not copied from rank 0 to rank 1: {sizes}"
        for sizes in (
            "1.5 kB are to be copied here; 741 kB are free",
            "61.5 kB are to be copied here; 801 kB are free",
        )
    ]


class _Copies(StepCopies):
    """Orders are carried out at once."""

    def __init__(self, disks: Disks) -> None:
        reports = [NodeReport(rank, address) for rank, address in disks.addresses.items()]
        super().__init__(
            lambda: reports, lambda _: AgentClient(""), disks.inventory, is_urgent=lambda: False, say=lambda _: None
        )
        self._disks, self.folders = disks, list[str]()

    def order(self, order: CopyOrder) -> str:
        self.folders.append(order.folder)
        self._disks.carry_out([order])
        return ""


def test_a_newer_step_is_copied_before_the_next_one_that_stays_for_good() -> None:
    disks = Disks(2)
    copies = _Copies(disks)
    job = DurableJob(
        "job", "night", "", {}, 0.0, world_size=2, keep=1, keep_every=1, attempts=(Attempt(1, "job", "id", 0, 0.0),)
    )

    def look() -> str:
        copies.folders = ["nothing"]
        copies.mirror([job], disks.addresses, {})
        return copies.folders[-1].rpartition("_")[2]

    for step in (1, 2, 3):
        disks.save(step)
    assert [look(), look()] == ["3", "1"]
    disks.save(4)
    assert [look() for _ in range(3)] == ["4", "2", "nothing"]
