"""A simulated mirror: it outlives all machines, answers or does not, and takes a while for each upload."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from durable.disks import Disks, SavedFile, names_of_step, run_and_step

from cloudrl.protocol.mirrors import UploadOrder, UploadState, file_key, parse_manifest_name
from cloudrl.saves.mirrored import attempt_of


@dataclass
class _Uploads:
    """What one machine copies."""

    orders: deque[UploadOrder] = field(default_factory=deque)
    done: dict[tuple[str, str, float], UploadState] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    ready_at: int = -1


class Mirror:
    """A store in memory.

    Args:
        disks: of the cluster.
        world: as `Agents` has it.
    """

    def __init__(self, disks: Disks, world: Any) -> None:
        self._disks, self._world = disks, world
        self.texts: dict[str, bytes] = {}
        self.files: dict[str, SavedFile] = {}
        self._uploads: dict[int, _Uploads] = {}

    # -- the store ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """As `FolderStore`, like the other methods here."""

    def put(self, key: str, content: bytes) -> None:
        self._refuse_cut()
        self.texts[key] = content
        if self._is_manifest(key):
            self._check_manifest(key)

    def get(self, key: str, _limit_bytes: int) -> bytes | None:
        self._refuse_cut()
        return self.texts.get(key)

    def names(self, prefix: str) -> dict[str, int]:
        self._refuse_cut()
        return {
            key: len(text)
            for key, text in self.texts.items()
            if key.startswith(prefix) and "/" not in key[len(prefix) :]
        }

    def remove(self, keys: Iterable[str]) -> None:
        self._refuse_cut()
        for key in keys:
            self._check_kept(key)
            self.files.pop(key, None)
            if self.texts.pop(key, None) is not None and self._is_manifest(key):
                run = key.partition("/")[0]
                if not self.steps(run):
                    self._world.violate(f"S3 the last step of {run} is removed from the mirror: {key}")

    def _check_kept(self, key: str) -> None:
        """A save that counts and is of the job's own lineage stays if its step does."""
        run, job = key.partition("/")[0], self._world.nodes[0].journal.get(key.partition("/")[0])
        if key not in self.texts or not self._is_manifest(key) or job is None:
            return
        attempt, folder, _ = parse_manifest_name(key.rpartition("/")[2]) or ("", "", "")
        step = run_and_step(folder)[1]
        if step in self._world.kept(run, self.steps(run)) and attempt == attempt_of(job, step):
            self._world.violate(f"K1 {key} is removed, and its step is to stay for good")

    def forget_uploads(self) -> None:
        """The agents have ended."""
        self._uploads.clear()

    def _refuse_cut(self) -> None:
        if self._world.tick < self._world.lossy_until and self._world.random.random() < 0.5:
            raise OSError("the mirror does not answer")

    @staticmethod
    def _is_manifest(key: str) -> bool:
        parsed = parse_manifest_name(key.rpartition("/")[2])
        return parsed is not None and parsed[2] == ""

    # -- a node's agent -------------------------------------------------------------------------------------

    def take(self, node: int, order: UploadOrder) -> UploadState:
        """As `MirrorCopier.take`."""
        mine = self._uploads.setdefault(self._disks.machines[node].number, _Uploads())
        done = mine.done.get((order.attempt, order.folder, order.began_at))
        if done is not None and set(done.sums) == {file.path for file in order.files}:
            return done
        is_coming = any((one.attempt, one.folder) == (order.attempt, order.folder) for one in mine.orders)
        error = "" if is_coming else mine.errors.pop(order.folder, "")
        if not is_coming and not error:
            mine.orders.append(order)
            if len(mine.orders) == 1:
                mine.ready_at = self._world.tick + self._world.random.randint(1, 6)
        if order.is_urgent:
            mine.ready_at = min(mine.ready_at, self._world.tick + 2)
        return UploadState({}, error=error)

    def work(self) -> None:
        """Uploads whose time has come are there, or have failed."""
        for machine in self._disks.different:
            mine = self._uploads.get(machine.number)
            if mine is not None and mine.orders and self._world.tick >= mine.ready_at:
                order = mine.orders.popleft()
                mine.ready_at = self._world.tick + self._world.random.randint(1, 6)
                try:
                    run, step = run_and_step(order.folder)
                    sums = self._copy(order, machine.runs.get(run, {}).get(step, {}))
                    mine.done[order.attempt, order.folder, order.began_at] = UploadState(sums)
                except OSError as error:
                    mine.errors[order.folder] = str(error)

    def _copy(self, order: UploadOrder, saved: dict[str, SavedFile]) -> dict[str, int]:
        sums = {}
        for file in order.files:
            self._refuse_cut()
            original = saved.get(file.path[len(order.folder) + 1 :])
            if original is None or original.modified_at != file.modified_at:
                raise OSError(f"{file.path} has changed")
            if self._world.is_flipped_on_the_way():
                raise OSError(f"{file.path} was damaged on its way")
            self.files[file_key(order.attempt, file.path, order.folder)] = original._replace(is_copy=True)
            sums[file.path] = original.crc32
        return sums

    # -- the truth ------------------------------------------------------------------------------------------

    def steps(self, run: str) -> dict[int, set[str]]:
        """Step -> submission ids of the attempts whose saves of it count."""
        found: dict[int, set[str]] = {}
        for key in self.texts:
            folder, _, name = key.rpartition("/")
            parsed = parse_manifest_name(name)
            if folder == f"{run}/.cloudrl" and parsed is not None and not parsed[2]:
                found.setdefault(run_and_step(parsed[1])[1], set()).add(parsed[0].rpartition(".")[0])
        return found

    def _check_manifest(self, key: str) -> None:
        parsed = parse_manifest_name(key.rpartition("/")[2])
        assert parsed is not None
        attempt, step, _ = parsed
        folder = f"{key.partition('/')[0]}/{step}"
        for name in names_of_step(self._disks.count):
            file = self.files.get(file_key(attempt, f"{folder}/{name}", folder))
            is_own = file is not None and file.attempt == attempt.rpartition(".")[0]
            flipped = self._world.flipped_at >= 0
            if file is None or not is_own or not (file.is_good or flipped):
                self._world.violate(f"S4 {key} counts in the mirror, and its {name} is {file}")
