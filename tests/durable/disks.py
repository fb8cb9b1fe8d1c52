"""Disks of simulated machines: files of saves, what a node says of them, and copies from one disk to another.

Only these classes know what a file truly holds: `copies` and `steps_with` are the truth against which the
product's own view is judged.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cloudrl.errors import ConnectionFailed
from cloudrl.node.mirror_saves import read_save
from cloudrl.protocol import routes
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.mirrors import MIRROR_RANK, UploadOrder, UploadState, file_key
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.step_copies import ClearOrder, CopyOrder, CopyState, WantedFile
from cloudrl.protocol.wire import from_json
from cloudrl.saves import copies
from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.names import OF_STEP

SHARD_BYTES, ROOM_BYTES = 10 << 30, 1 << 40


class SavedFile(NamedTuple):
    """A file of a step.

    Attributes:
        attempt: whose save wrote it.
        is_copy: whether the agent has copied it from another machine.
        is_good: whether it has the bytes that were saved; no list of files shows that.
        damage: what an agent sees when it looks into it.
    """

    size_bytes: int
    modified_at: float
    attempt: str
    is_good: bool = True
    is_copy: bool = False
    damage: str = ""

    @property
    def crc32(self) -> int:
        return zlib.crc32(f"{self.attempt} {self.is_good}".encode())


@dataclass
class Machine:
    """A machine and its disk.

    Attributes:
        number: makes its address.
        runs: run -> step -> name below the step -> file.
        journal: the records of jobs.
        orders: copies that it is to make, the first one under way.
        changes: run -> how often its files have changed.
    """

    number: int
    runs: dict[str, dict[int, dict[str, SavedFile]]] = field(default_factory=dict)
    journal: dict[str, DurableJob] = field(default_factory=dict)
    orders: deque[CopyOrder] = field(default_factory=deque)
    errors: dict[str, str] = field(default_factory=dict)
    ready_at: int = -1
    changes: dict[str, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"10.0.0.{self.number}"

    def put(self, run: str, step: int, name: str, file: SavedFile) -> None:
        self.runs.setdefault(run, {}).setdefault(step, {})[name] = file
        self.changes[run] = self.changes.get(run, 0) + 1

    def remove(self, run: str, step: int) -> None:
        if self.runs.get(run, {}).pop(step, None) is not None:
            self.changes[run] += 1

    def clear(self, order: ClearOrder) -> None:
        """As `StepCopier.clear`."""
        run, step = run_and_step(order.folder)
        files = self.runs.get(run, {}).get(step, {})
        for file in order.files:
            name = file.path[len(order.folder) + 1 :]
            if name in files and files[name].is_copy and files[name].modified_at == file.modified_at:
                del files[name]
                self.changes[run] += 1

    def answer(self, runs: Sequence[str]) -> dict[str, Any]:
        """What its agent says of these runs."""
        listed = [{"run": run, "tracker": None, "steps": [*_steps(self.runs.get(run, {}))]} for run in runs]
        place = {
            "root": "checkpoints",
            "folder": "/c",
            "identity": f"machine{self.number}",
            "marker": "",
            "markers": [],
        }
        return {"locations": [{**place, "runs": listed}]}


def _steps(steps: dict[int, dict[str, SavedFile]]) -> Iterator[dict[str, Any]]:
    for step, files in steps.items():
        actor = [_said(name[6:], file) for name, file in files.items() if name.startswith("actor/")]
        role = {"role": "actor", "folder": "actor", "files": actor, "saves": []}
        others = [_said(name, file) for name, file in files.items() if "/" not in name]
        yield {"step": step, "files": others, "roles": [role] if actor else []}


def _said(path: str, file: SavedFile) -> dict[str, Any]:
    return {"path": path, "size_bytes": file.size_bytes, "modified_at": file.modified_at, "damage": file.damage}


def run_and_step(folder: str) -> tuple[str, int]:
    """Of `RUN/global_step_3`."""
    run, _, name = folder.rpartition("/")
    return run, int(name[len(OF_STEP) :])


def names_of_step(ranks: int) -> list[str]:
    """All that makes a step whole: what a resume takes, and what a merge takes."""
    return [
        "data.pt",
        "actor/huggingface/config.json",
        *(f"actor/model_world_size_{ranks}_rank_{rank}.pt" for rank in range(ranks)),
    ]


class Disks:
    """The machines of a cluster, one after the other by node, and those that it has lost.

    Args:
        count: of nodes.
        is_shared: whether all of them have one folder.
    """

    def __init__(self, count: int, *, is_shared: bool) -> None:
        self.count, self.is_shared = count, is_shared
        self.machines = [Machine(number) for number in range(1, count + 1)]
        if is_shared:
            self.machines = [self.machines[0]] * count
        self.gone: list[Machine] = []
        self._made = count
        self._known: dict[str, tuple[Any, Inventory]] = {}

    @property
    def different(self) -> list[Machine]:
        return self.machines[:1] if self.is_shared else self.machines

    @property
    def order(self) -> list[int]:
        """Nodes in the order in which verl counts ranks: by address, as text."""
        return sorted(range(self.count), key=self.address)

    def address(self, node: int) -> str:
        return f"10.0.0.{node + 1}" if self.is_shared else self.machines[node].address

    @property
    def addresses(self) -> dict[int, str]:
        return {node: self.address(node) for node in range(self.count)}

    @property
    def reports(self) -> list[NodeReport]:
        return [NodeReport(node, address, agent_port=8266, gpus=1) for node, address in self.addresses.items()]

    def replace(self, node: int, number: int | None = None) -> None:
        """Another machine takes the place of a lost one: one with an empty disk, or one that was lost before."""
        lost = self.machines[node]
        self._made += 1
        self.machines[node] = self.gone.pop(number) if number is not None else Machine(self._made)
        self.machines[node].orders.clear()
        self.gone.append(lost)

    def replace_all(self) -> None:
        """All machines are gone; others with empty disks take their places."""
        self._made += self.count
        self.machines = [Machine(self._made - number) for number in range(self.count)]
        if self.is_shared:
            self.machines = [self.machines[0]] * self.count

    def save(self, run: str, step: int, attempt: str, at: float, nodes: Sequence[int]) -> None:
        """Ranks on these nodes save; the controller, on node 0, ends the save if all have."""
        for node in nodes:
            rank = self.order.index(node)
            name = f"actor/model_world_size_{self.count}_rank_{rank}.pt"
            self.machines[node].put(run, step, name, SavedFile(SHARD_BYTES, at, attempt))
            if rank == 0:
                self.machines[node].put(run, step, "actor/huggingface/config.json", SavedFile(900, at, attempt))
        if len(nodes) == self.count:
            self.machines[0].put(run, step, "data.pt", SavedFile(2000, at, attempt))

    def state(self, run: str) -> tuple[tuple[int, int], ...]:
        """Another one whenever any file of a run has changed, or a node has another disk."""
        return tuple((machine.number, machine.changes.get(run, 0)) for machine in self.machines)

    def inventory(self, runs: Sequence[str], silent: int | None = None) -> Inventory:
        """What all nodes but a silent one say of these runs."""
        notes = () if silent is None else (f"node {silent} says nothing",)
        found = [checkpoint for run in runs for checkpoint in self._of_run(run, silent).checkpoints]
        return Inventory(tuple(found), (), notes)

    def _of_run(self, run: str, silent: int | None) -> Inventory:
        key = silent, self.state(run)
        if run not in self._known or self._known[run][0] != key:
            heard = [report for report in self.reports if report.rank != silent]
            found = aggregate([(report, self.machines[report.rank].answer((run,))) for report in heard])
            self._known[run] = key, found
        return self._known[run][1]

    # -- the truth ------------------------------------------------------------------------------------------

    def attempts_of(self, run: str, step: int) -> set[str]:
        """Attempts of which anything of a step is on any disk."""
        return {file.attempt for each in self.different for file in each.runs.get(run, {}).get(step, {}).values()}

    def copies(self, run: str, step: int, attempt: str) -> int:
        """On how many disks every file of a step is as this attempt has saved it."""
        return min(
            sum(_is_of(machine.runs.get(run, {}).get(step, {}).get(name), attempt) for machine in self.different)
            for name in names_of_step(self.count)
        )

    def steps_with(self, run: str, least: int) -> dict[int, set[str]]:
        """Step -> attempts of which it is whole, on so many disks at least."""
        steps = {step for machine in self.different for step in machine.runs.get(run, {})}
        found = {
            step: {one for one in self.attempts_of(run, step) if self.copies(run, step, one) >= least} for step in steps
        }
        return {step: attempts for step, attempts in found.items() if attempts}

    def loaded(self, run: str, step: int) -> list[SavedFile | None]:
        """What the ranks of a resume would read, each on its node, and the controller."""
        places = [(0, "data.pt")]
        places += [
            (node, f"actor/model_world_size_{self.count}_rank_{rank}.pt") for rank, node in enumerate(self.order)
        ]
        return [self.machines[node].runs.get(run, {}).get(step, {}).get(name) for node, name in places]


def _is_of(file: SavedFile | None, attempt: str) -> bool:
    return bool(file is not None and file.attempt == attempt and file.is_good and not file.damage)


class Agents:
    """Agents as rank 0 calls them: they take orders of copies, and have done with them some ticks later.

    Args:
        disks: of the cluster.
        world: has `tick`, the times of its faults, and a random generator.
    """

    def __init__(self, disks: Disks, world: Any) -> None:
        self._disks, self._world = disks, world

    def of(self, report: NodeReport) -> Any:
        return _Agent(self, report.rank)

    def take(self, node: int, body: Any) -> CopyState:
        """As `StepCopier.take`."""
        if self._is_cut():
            raise ConnectionFailed("node does not answer", hint="")
        order, machine = from_json(CopyOrder, body), self._disks.machines[node]
        is_coming = any(known.folder == order.folder for known in machine.orders)
        error = "" if is_coming else machine.errors.pop(order.folder, "")
        if not is_coming and not error:
            machine.orders.append(order)
            if len(machine.orders) == 1:
                machine.ready_at = self._world.tick + self._world.random.randint(1, 6)
        if order.is_urgent and self._world.taken_back.is_urgent():
            machine.ready_at = min(machine.ready_at, self._world.tick + 2)
        return CopyState(is_coming, 0, error)

    def upload(self, node: int, body: Any) -> UploadState:
        if self._is_cut():
            raise ConnectionFailed("node does not answer", hint="")
        state: UploadState = self._world.mirror.take(node, from_json(UploadOrder, body))
        return state

    def clear(self, node: int, order: ClearOrder) -> int:
        run, _ = run_and_step(order.folder)
        with self._nothing_is_lost(run, order.folder):
            self._disks.machines[node].clear(order)
        return 0

    def remove(self, node: int, run: str, step: int) -> None:
        if step in self._world.kept(run, self._disks.steps_with(run, 1)):
            self._world.violate(f"K1 step {step} of {run} is removed, and it is to stay for good")
        with self._nothing_is_lost(run, f"step {step}", removed=step):
            self._disks.machines[node].remove(run, step)

    @contextlib.contextmanager
    def _nothing_is_lost(self, run: str, what: str, removed: int = -1) -> Iterator[None]:
        before = max(self._disks.steps_with(run, 2), default=0)
        whole = set(self._disks.steps_with(run, 1)) - {removed}
        yield
        if max(self._disks.steps_with(run, 2), default=0) < before:
            self._world.violate(f"S3 {what} of {run} is removed, and no other is as safe")
        if not whole <= set(self._disks.steps_with(run, 1)):
            self._world.violate(f"S3 the only copy of a file of {what} of {run} is removed")

    def work(self) -> None:
        """Copies whose time has come are there, or have failed."""
        for machine in self._disks.different:
            if machine.orders and self._world.tick >= machine.ready_at:
                order = machine.orders.popleft()
                machine.ready_at = self._world.tick + self._world.random.randint(1, 6)
                try:
                    self._copy(machine, order)
                except OSError as error:
                    machine.errors[order.folder] = str(error)

    def _is_cut(self) -> bool:
        return bool(self._world.tick < self._world.lossy_until and self._world.random.random() < 0.5)

    def _copy(self, machine: Machine, order: CopyOrder) -> None:
        if order.source == MIRROR_RANK:
            self._bring(machine, order)
            return
        source = next((each for each in self._disks.machines if f"{each.address}:8266" == order.address), None)
        if source is None or self._is_cut():
            raise OSError("the source does not answer")
        copies.refuse_without_room(order.size_bytes, 0 if self._world.tick < self._world.full_until else ROOM_BYTES)
        (run, step), come = run_and_step(order.folder), {}
        for file in order.files:
            name = file.path[len(order.folder) + 1 :]
            come[name] = self._receive(file, source.runs.get(run, {}).get(step, {}).get(name))
        for name, saved in come.items():
            machine.put(run, step, name, saved)

    def _bring(self, machine: Machine, order: CopyOrder) -> None:
        """From the mirror."""
        mirror = self._world.mirror
        sums = {file.path: file.crc32 for file in read_save(mirror, order.attempt, order.folder).files}
        run, step = run_and_step(order.folder)
        for file in order.files:
            original = mirror.files.get(file_key(order.attempt, file.path, order.folder))
            received = self._receive(file, original)
            copies.refuse_changed(file, received.crc32, (file.size_bytes, sums[file.path]))
            machine.put(run, step, file.path[len(order.folder) + 1 :], received)

    def _receive(self, file: WantedFile, original: SavedFile | None) -> SavedFile:
        if original is None or original.size_bytes != file.size_bytes:
            raise OSError(f"{file.path} has gone")
        received = original._replace(modified_at=file.modified_at, is_copy=True)
        if self._world.is_flipped_on_the_way():
            received = received._replace(is_good=False)
        copies.refuse_changed(file, received.crc32, (original.size_bytes, original.crc32))
        return received


class _Agent:
    """The client of one agent."""

    def __init__(self, agents: Agents, node: int) -> None:
        self._agents, self._node = agents, node

    def request(self, route: routes.Route, **arguments: Any) -> tuple[routes.Route, dict[str, Any]]:
        return route, arguments

    def call(self, request: tuple[routes.Route, dict[str, Any]], _read: Any, *_: Any) -> Any:
        route, arguments = request
        body = json.loads(arguments["body"])
        if route is routes.UPLOAD_STEP:
            return self._agents.upload(self._node, body)
        if route is routes.COPY_STEP:
            return self._agents.take(self._node, body)
        assert route is routes.CLEAR_COPIES
        return self._agents.clear(self._node, from_json(ClearOrder, body))

    def remove_step(self, rank: int, _root: str, path: str) -> None:
        self._agents.remove(rank, *run_and_step(path))
