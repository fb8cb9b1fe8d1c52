"""A mirror in a folder: what nodes have saved is there, and comes back to nodes with empty disks."""

import hashlib
import io
import itertools
import json
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_step import write_step

from cloudrl.durable.attempt_plan import plan_attempt
from cloudrl.errors import CheckpointError, ConnectionFailed, InputError
from cloudrl.node import mirror_folder
from cloudrl.node.background import call_within
from cloudrl.node.mirror_copier import MirrorCopier
from cloudrl.node.mirror_folder import FolderStore, NotMountedError
from cloudrl.node.mirror_stores import open_store
from cloudrl.node.mirrors import Mirrors
from cloudrl.node.step_copier import StepCopier
from cloudrl.node.step_copies import StepCopies
from cloudrl.node.uploads import Store as Files
from cloudrl.protocol import routes
from cloudrl.protocol.durable_jobs import Attempt, DurableJob
from cloudrl.protocol.failures import ApiError
from cloudrl.protocol.manifest import Manifest, Part
from cloudrl.protocol.mirrors import MIRROR_RANK, MirrorStatus, UploadOrder, UploadState, parse_mirror
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.step_copies import CopyOrder, CopyState, WantedFile
from cloudrl.protocol.wire import from_json
from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.resume import Ranks
from cloudrl.saves.scan import scan
from cloudrl.saves.wholeness import Inspector

FIRST = Attempt(1, "night-1", "cluster-1", 0, 1000.0)


class Cluster:
    """Nodes with disks of their own whose agents work at once, and the mirror of their job."""

    def __init__(self, folder: Path, count: int) -> None:
        self.mirror, self.count, self.said = folder / "mirror", count, list[str]()
        self.disks = [folder / f"node-{rank}" for rank in range(count)]
        for disk in self.disks:
            disk.mkdir(parents=True, exist_ok=True)
        store: Callable[[str], Any] = lambda address: open_store(address, {})  # noqa: E731
        self.uploads = [MirrorCopier(disk, {}, sleep=lambda _: None) for disk in self.disks]
        self.copiers = [
            StepCopier(disk, lambda _: pytest.fail("no node has it"), mirror=store, free_bytes=lambda _: 10**12)
            for disk in self.disks
        ]
        reports = lambda: [NodeReport(rank, f"10.0.0.{rank + 1}", gpus=1) for rank in range(count)]  # noqa: E731
        self.clock = 0.0
        self.files = Files(folder / "files", free_bytes=lambda _: 10**12)
        self.mirrors = Mirrors(
            reports, self._agent, store, self.files, is_urgent=lambda: False, say=self.said.append,
            clock=lambda: self.clock,
        )  # fmt: skip
        self.copies = StepCopies(reports, self._agent, self.inventory, is_urgent=lambda: False, say=self.said.append)
        self.job = DurableJob(
            "night-1", "night", "run", {"entrypoint": "true"}, 0.0, world_size=2, attempts=(FIRST,),
            mirror=str(self.mirror),
        )  # fmt: skip

    def _agent(self, report: NodeReport) -> Any:
        return _Agent(self, report.rank)

    @property
    def addresses(self) -> dict[int, str]:
        return {rank: f"10.0.0.{rank + 1}" for rank in range(self.count)}

    def save(self, step: int) -> None:
        """Two ranks save; with two nodes each has the shards of one."""
        write_step(self.disks[0] / "night", step)
        folder = self.disks[0] / "night" / f"global_step_{step}"
        for path in [*folder.rglob("*_rank_1*")] if self.count > 1 else ():
            target = self.disks[1] / path.relative_to(self.disks[0])
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)

    def inventory(self) -> Inventory:
        inspector, answers = Inspector(), []
        for rank, disk in enumerate(self.disks):
            place = {"root": "checkpoints", "folder": "/c", "identity": f"{rank}", "marker": "", "markers": []}
            runs = scan(disk, inspector=inspector)
            answers.append((NodeReport(rank, f"10.0.0.{rank + 1}"), {"locations": [{**place, "runs": runs}]}))
        return aggregate(answers)

    def upload(self) -> None:
        for _ in range(3):
            if not self.mirrors.upload([self.job], self.inventory()):
                return
        assert not self.mirrors.upload([self.job], self.inventory()), self.said

    def lose_all(self) -> None:
        for disk in self.disks:
            shutil.rmtree(disk)
            disk.mkdir()

    def resume_step(self) -> int:
        """As `DurableJobs` plans it."""
        for _ in range(60):
            inventory = self.mirrors.with_saves(self.job, self.inventory(), self.copies.unreadable)
            if not self.copies.bring(self.job, inventory, self.addresses):
                ranks = Ranks(2, self.count, self.addresses)
                return plan_attempt(self.job, inventory, ranks, checkpoint_dir="/c", cluster="c").planned.from_step
        raise AssertionError(self.said)

    def files_of_step(self, step: int) -> dict[str, bytes]:
        """On any node: name -> content."""
        paths = (path for disk in self.disks for path in disk.glob(f"night/global_step_{step}/**/*"))
        return {path.name: path.read_bytes() for path in paths if path.is_file() and not path.name.startswith(".")}

    @property
    def steps(self) -> list[int]:
        return sorted(self.mirrors.saves(self.job))


class _Agent:
    """Does at once what it is ordered to, and tells of it at the next call, as agents do."""

    def __init__(self, cluster: Cluster, rank: int) -> None:
        self._cluster, self._rank = cluster, rank

    def request(self, route: routes.Route, **arguments: Any) -> tuple[routes.Route, Any]:
        return route, json.loads(arguments["body"])

    def call(self, request: tuple[routes.Route, Any], _read: Any, *_: Any) -> Any:
        route, body = request
        if route is routes.UPLOAD_STEP:
            return self._cluster.uploads[self._rank].copy(from_json(UploadOrder, body))
        assert route is routes.COPY_STEP
        order = from_json(CopyOrder, body)
        if order.source != MIRROR_RANK:
            for file in order.files:
                target = self._cluster.disks[self._rank] / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self._cluster.disks[order.source] / file.path, target)
            return CopyState(is_coming=True)
        try:
            self._cluster.copiers[self._rank].copy(order)
        except (OSError, ValueError) as error:
            return CopyState(error=str(error))
        return CopyState(is_coming=True)


@pytest.fixture(params=[1, 2])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Cluster:
    made = Cluster(tmp_path, request.param)
    made.mirrors.begin(made.job.mirror)
    made.mirrors.jobs.take(made.job)
    return made


def test_a_job_goes_on_from_its_mirror_after_the_loss_of_all_disks(cluster: Cluster) -> None:
    cluster.save(2)
    before = cluster.files_of_step(2)
    cluster.upload()
    cluster.lose_all()

    assert cluster.resume_step() == 2
    assert cluster.files_of_step(2) == before
    if cluster.count > 1:
        assert [*cluster.disks[1].rglob("model_*_rank_1.pt")]
        assert not [*cluster.disks[1].rglob("model_*_rank_0.pt")]


def test_a_step_counts_once_all_nodes_have_mirrored_their_part(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.mirrors.begin(cluster.job.mirror)
    cluster.mirrors.jobs.take(cluster.job)
    cluster.save(2)
    upload, cluster.uploads[1].copy = cluster.uploads[1].copy, _failing  # type: ignore[method-assign]

    assert cluster.mirrors.upload([cluster.job], cluster.inventory())
    assert cluster.steps == []
    assert any("rank 1 does not mirror: the volume is full" in line for line in cluster.said)

    cluster.uploads[1].copy = upload  # type: ignore[method-assign]
    cluster.upload()
    assert cluster.steps == [2]


def test_a_notice_reckons_a_copy_without_the_rests_of_those_before(tmp_path: Path) -> None:
    """The limit of `--mirror-rate` does not hold once a machine is taken back."""
    cluster, seconds = Cluster(tmp_path, 1), itertools.count()
    copier, rests = cluster.uploads[0], list[float]()
    copier._clock = lambda: float(next(seconds) + sum(rests))
    copier._sleep, copier._bytes_per_s = rests.append, 1
    cluster.mirrors.begin(cluster.job.mirror)
    cluster.save(2)
    cluster.upload()

    save = cluster.mirrors.saves(cluster.job)[2]
    assert sum(rests) > 30
    assert 0 < save.work_s < save.seconds - sum(rests) + 1
    assert cluster.mirrors.pace("night") == (0.0, save.work_s)


def test_how_far_a_mirror_is(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    run, mirror = cluster.job.run, cluster.job.mirror
    assert cluster.mirrors.statuses == ()
    cluster.save(2)
    assert cluster.mirrors.upload([cluster.job], cluster.inventory())
    [status] = cluster.mirrors.statuses
    assert (status.run, status.step, status.coming) == (run, None, None)
    assert status.error.startswith(f"the mirror {mirror} does not take run night: {mirror} is not mounted")

    cluster.mirrors.begin(mirror)
    whole, cluster.uploads[1].copy = (
        cluster.uploads[1].copy, lambda _: UploadState({}, copied_bytes=100, seconds=4.0)
    )  # type: ignore[method-assign]  # fmt: skip
    assert cluster.mirrors.upload([cluster.job], cluster.inventory())
    [status] = cluster.mirrors.statuses
    size = sum(map(len, cluster.files_of_step(2).values()))
    of_second = sum(path.stat().st_size for path in cluster.disks[1].rglob("*") if path.is_file())
    assert (status.step, status.coming, status.size_bytes) == (None, 2, size)
    assert (status.sent_bytes, status.bytes_per_s, status.error) == (size - of_second + 100, 25, "")

    cluster.uploads[1].copy = lambda _: UploadState({}, error="disk quota exceeded")  # type: ignore[method-assign]
    assert cluster.mirrors.upload([cluster.job], cluster.inventory())
    assert "night/global_step_2 of rank 1 is not mirrored: disk quota exceeded" in cluster.mirrors.statuses[0].error

    cluster.uploads[1].copy = whole  # type: ignore[method-assign]
    cluster.upload()
    [status] = cluster.mirrors.statuses
    assert status.mirrored_at > 0
    assert replace(status, mirrored_at=0.0) == MirrorStatus(run, mirror, 2)


def test_an_error_of_a_mirror_stays_while_the_same_files_are_tried_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    cluster.mirrors.begin(cluster.job.mirror)
    cluster.save(2)
    failed = UploadState({}, error="disk quota exceeded", files=2)
    again = [UploadState({}, copied_bytes=5 << 30, seconds=4.0, files=files) for files in (0, 1, 2)]

    def told(*states: UploadState) -> list[bool]:
        found = []
        for state in states:
            cluster.uploads[0].copy = lambda _, state=state: state  # type: ignore[method-assign, misc]
            assert cluster.mirrors.upload([cluster.job], cluster.inventory())
            found.append("disk quota exceeded" in cluster.mirrors.statuses[0].error)
        return found

    assert told(failed, *again, failed, *again) == [True] * 8
    assert len([line for line in cluster.said if "disk quota" in line]) == 1, "each warning is written once"
    assert told(UploadState({}, files=3)) == [False], "a file has arrived that had not"
    assert told(failed, UploadState({}), failed) == [True] * 3
    cluster.save(4)  # the newer step is copied now
    assert told(UploadState({}), UploadState({}, files=1)) == [True, False]


def test_what_a_copier_says_of_an_order_that_failed(tmp_path: Path) -> None:
    (tmp_path / "night" / "global_step_2").mkdir(parents=True)
    for name in ("a.pt", "b.pt"):
        (tmp_path / "night" / "global_step_2" / name).write_bytes(b"x")
    FolderStore(tmp_path / "mirror").begin()
    copier = MirrorCopier(tmp_path, {}, sleep=lambda _: None)
    at = (tmp_path / "night" / "global_step_2" / "a.pt").stat().st_mtime
    wanted = tuple(WantedFile(f"night/global_step_2/{name}", size, at) for name, size in (("a.pt", 1), ("b.pt", 9)))
    order = UploadOrder(0, str(tmp_path / "mirror"), "night/global_step_2", "night-1.0", wanted)
    until = time.monotonic() + 60
    while not (state := copier.take(order)).error and time.monotonic() < until:
        time.sleep(0.01)
    assert "b.pt has changed" in state.error
    assert state.files == 1


def test_a_job_that_is_over_has_nothing_on_its_way(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    cluster.mirrors.begin(cluster.job.mirror)
    cluster.save(2)
    cluster.upload()
    cluster.save(4)
    cluster.uploads[0].copy = lambda _: UploadState({}, error="disk quota exceeded")  # type: ignore[method-assign]
    assert cluster.mirrors.upload([cluster.job], cluster.inventory())
    [status] = cluster.mirrors.statuses
    assert (status.coming, "disk quota" in status.error) == (4, True)

    cluster.mirrors.watch([])
    [status] = cluster.mirrors.statuses
    assert replace(status, mirrored_at=0.0) == MirrorStatus("night", cluster.job.mirror, 2)


def test_an_error_of_one_run_is_not_taken_back_by_another_in_the_same_mirror(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    cluster.mirrors.begin(cluster.job.mirror)
    other = replace(cluster.job, job_id="other-1", run="other")
    (cluster.mirror / "night").write_text("a file, where the folder of the run should be")
    cluster.save(2)

    assert cluster.mirrors.upload([cluster.job, other], cluster.inventory())
    errors = {status.run: status.error for status in cluster.mirrors.statuses}
    assert "does not take run night" in errors["night"]
    assert errors["other"] == ""


def test_a_record_that_one_mirror_does_not_take_holds_up_no_other_mirror(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    cluster.mirrors.begin(cluster.job.mirror)
    cluster.mirrors.jobs.note(replace(cluster.job, job_id="other-1", run="other", mirror=str(tmp_path / "absent")))
    cluster.save(2)

    assert cluster.mirrors.upload([cluster.job], cluster.inventory())
    assert cluster.steps == [2]
    assert any("does not record other-1" in line for line in cluster.said)


def test_a_step_that_a_resume_would_not_take_is_not_told_as_safe(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    cluster.mirrors.begin(cluster.job.mirror)
    for step in (20, 40):
        cluster.save(step)
        cluster.upload()
    assert cluster.mirrors.statuses[0].step == 40
    second = Attempt(2, "night-1-2", "cluster-2", 20, time.time() + 60)
    cluster.job = replace(cluster.job, attempts=(FIRST, second))
    cluster.mirrors.upload([cluster.job], cluster.inventory())

    assert cluster.steps == [20]
    assert cluster.mirrors.statuses[0].step == 20


def _failing(_: object) -> Any:
    raise OSError("the volume is full")


def test_a_damaged_file_of_the_mirror_is_not_taken_and_the_step_before_is(cluster: Cluster) -> None:
    for step in (2, 4):
        cluster.save(step)
        cluster.upload()
    cluster.lose_all()
    [shard] = cluster.mirror.rglob("global_step_4/actor/model_*_rank_0.pt")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)

    assert cluster.resume_step() == 2
    assert any("was damaged on its way" in line for line in cluster.said)


def test_as_many_steps_stay_as_on_the_disks_and_never_none(cluster: Cluster) -> None:
    cluster.job = replace(cluster.job, keep=1)
    cluster.save(2)
    cluster.upload()
    assert cluster.steps == [2]
    cluster.save(4)
    cluster.upload()
    cluster.upload()

    assert cluster.steps == [4]
    assert not [*cluster.mirror.rglob("global_step_2/*")]


def test_what_an_upload_has_left_that_broke_off_is_removed(cluster: Cluster) -> None:
    cluster.save(2)
    for copier in cluster.uploads:
        copier.copy = _failing  # type: ignore[method-assign]
    cluster.mirrors.upload([cluster.job], cluster.inventory())
    assert [path.name for path in cluster.mirror.rglob("*.coming.json")]
    # another attempt takes its place
    second = Attempt(2, "night-1-2", "cluster-1", 0, 2000.0)
    cluster.job = replace(cluster.job, attempts=(FIRST, second))
    for copier in cluster.uploads:
        copier.copy = MirrorCopier.copy.__get__(copier)  # type: ignore[method-assign]
    cluster.upload()

    assert not [*cluster.mirror.rglob("*.coming.json")]
    assert [path.name for path in (cluster.mirror / "night").iterdir() if path.name.startswith("night-1.")] == []
    assert cluster.steps == [2]


def test_a_save_of_an_attempt_that_was_left_behind_does_not_count(cluster: Cluster) -> None:
    cluster.save(6)
    cluster.upload()
    second = Attempt(2, "night-1-2", "cluster-2", 4, 2000.0)
    cluster.job = replace(cluster.job, attempts=(FIRST, second))

    assert cluster.steps == []


def test_a_mirror_that_does_not_answer_is_waited_for_unless_the_nodes_have_the_newest_step(cluster: Cluster) -> None:
    cluster.save(2)
    cluster.upload()
    (cluster.mirror / mirror_folder._MARK).unlink()  # it is not mounted
    told = replace(FIRST, saved_step=2)
    cluster.job = replace(cluster.job, attempts=(told,))

    inventory = cluster.inventory()
    assert cluster.mirrors.with_saves(cluster.job, inventory, ()) is inventory
    cluster.lose_all()
    with pytest.raises(ConnectionFailed, match="is not mounted"):
        cluster.mirrors.with_saves(cluster.job, cluster.inventory(), ())
    cluster.clock += 3600.0
    with pytest.raises(CheckpointError, match="no node has a whole step"):  # it must not begin anew
        cluster.mirrors.with_saves(cluster.job, cluster.inventory(), ())
    cluster.save(2)
    cluster.job = replace(cluster.job, attempts=(replace(FIRST, saved_step=4),))
    older = cluster.inventory()
    assert cluster.mirrors.with_saves(cluster.job, older, ()) is older


def test_a_volume_that_is_not_mounted_is_not_written(cluster: Cluster) -> None:
    cluster.save(2)
    shutil.rmtree(cluster.mirror)
    cluster.mirror.mkdir()

    assert cluster.mirrors.upload([cluster.job], cluster.inventory())
    assert [*cluster.mirror.rglob("*")] == []
    with pytest.raises(ApiError, match="is not mounted"):
        cluster.mirrors.jobs.take(cluster.job)
    with pytest.raises(NotMountedError):
        cluster.mirrors.jobs.records(cluster.job.mirror)
    assert [*cluster.mirror.rglob("*")] == []


def test_what_an_attempt_that_began_anew_has_saved_removes_nothing_that_is_further(cluster: Cluster) -> None:
    cluster.job = replace(cluster.job, keep=1)
    cluster.save(6)
    cluster.upload()
    cluster.lose_all()
    cluster.job = replace(cluster.job, attempts=(FIRST, Attempt(2, "night-1-2", "cluster-2", 0, 2000.0)))
    for step in (2, 4, 6):
        cluster.save(step)
        cluster.upload()
        cluster.upload()
        of_first = [*cluster.mirror.glob("night/night-1.*/global_step_6/actor/*")]
        assert bool(of_first) == (step < 6)
    assert cluster.steps == [6]


def test_a_mirror_whose_old_steps_cannot_be_removed_still_takes_new_ones(cluster: Cluster, monkeypatch: Any) -> None:
    def refuse(_store: Any, _keys: Any) -> None:
        raise OSError("AccessDenied (403)")

    monkeypatch.setattr("cloudrl.node.mirror_folder.FolderStore.remove", refuse)
    for step in (2, 4):
        cluster.save(step)
        cluster.upload()
    assert cluster.steps == [2, 4]
    assert any("AccessDenied" in line for line in cluster.said)
    check = cluster.uploads[0].check(cluster.job.mirror, "token", writes=True)
    assert "AccessDenied" in check.error


def test_a_step_that_a_node_cannot_upload_does_not_keep_out_the_next_one(cluster: Cluster) -> None:
    cluster.save(2)
    for copier in cluster.uploads:
        copier.copy = lambda _: UploadState({}, error="Input/output error")  # type: ignore[method-assign]
    assert cluster.mirrors.upload([cluster.job], cluster.inventory())
    assert cluster.mirrors.begun["night"] is None


def test_a_file_that_was_written_again_is_copied_again(tmp_path: Path) -> None:
    path = tmp_path / "night" / "global_step_2" / "data.pt"
    path.parent.mkdir(parents=True)
    copier = MirrorCopier(tmp_path, {}, sleep=lambda _: None)
    FolderStore(tmp_path / "mirror").begin()

    def sent() -> dict[str, int]:
        wanted = WantedFile("night/global_step_2/data.pt", path.stat().st_size, path.stat().st_mtime)
        order = UploadOrder(0, str(tmp_path / "mirror"), "night/global_step_2", "night-1", (wanted,), 0)
        until = time.monotonic() + 30
        while not (state := copier.take(order)).sums and time.monotonic() < until:
            time.sleep(0.01)
        return state.sums

    path.write_bytes(b"one")
    assert sent() == {"night/global_step_2/data.pt": zlib.crc32(b"one")}
    path.write_bytes(b"another")
    assert sent() == {"night/global_step_2/data.pt": zlib.crc32(b"another")}


def test_parts_of_uploads_that_broke_off_go_with_their_file(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "mirror")
    store.begin()
    folder = tmp_path / "mirror" / "night"
    folder.mkdir()
    for name in (".data.pt.0a1b2c3d.part", "data.pt", ".other.pt.0a1b2c3d.part"):
        (folder / name).write_bytes(b"half")
    store.remove(["night/data.pt"])
    assert [path.name for path in folder.iterdir()] == [".other.pt.0a1b2c3d.part"]


def test_a_call_that_never_returns_is_left() -> None:
    with pytest.raises(OSError, match="it has not answered"):
        call_within(0.05, threading.Event().wait, "it")
    assert call_within(10.0, lambda: 3, "it") == 3


def test_a_job_and_what_it_was_sent_with_come_back(tmp_path: Path) -> None:
    content = os.urandom(5000)
    part = Part("package.zip", len(content), hashlib.sha256(content).hexdigest())
    manifest = Manifest((part,))
    first, second = Cluster(tmp_path / "a", 1), Cluster(tmp_path / "b", 1)
    first.files.begin(manifest)
    first.files.write(manifest.address, part.path, 0, len(content), io.BytesIO(content))
    job = replace(first.job, package=manifest.address)

    first.mirrors.begin(job.mirror)
    first.mirrors.jobs.take(job)
    ended = replace(job, waits_for="a machine")
    first.mirrors.jobs.note(ended)
    first.mirrors.upload([], first.inventory())

    assert second.mirrors.jobs.records(job.mirror) == [ended]
    second.mirrors.jobs.bring_files(job)
    assert (second.files.root / manifest.address / part.path).read_bytes() == content


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    store, source = FolderStore(tmp_path / "mirror"), tmp_path / "file"
    store.begin()
    source.write_bytes(b"x" * 100)
    with source.open("rb") as file, pytest.raises(OSError, match="damaged on its way"):
        store.upload("a/b", file, 100, 1, lambda _: None)
    assert [path.name for path in (tmp_path / "mirror" / "a").iterdir()] == []

    with source.open("rb") as file:
        store.upload("a/b", file, 100, zlib.crc32(b"x" * 100), lambda _: None)
    assert store.get("a/b", 100) == b"x" * 100
    store.remove(["a/b", "a/absent"])
    assert not (tmp_path / "mirror" / "a").exists()


def test_nodes_look_whether_they_have_the_same_folder(tmp_path: Path) -> None:
    copier = MirrorCopier(tmp_path, {})
    mirror = str(tmp_path / "mirror")

    assert copier.check(mirror, "token", writes=True).is_seen
    assert "goes with the machine" in copier.check(mirror, "token", writes=True).warning
    assert not copier.check(mirror, "other", writes=False).is_seen
    absent = copier.check(str(tmp_path / "absent" / "mirror"), "token", writes=True)
    assert "No such file" in absent.error
    assert "volumes=[NAME:" in absent.hint


@pytest.mark.parametrize("text", ["runs", "/mnt/../etc", "ftp://host/x", "/", "/mnt//x"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--mirror"):
        parse_mirror(text)


def test_training_goes_first_unless_the_node_may_be_gone_soon(tmp_path: Path) -> None:
    now, slept = [0.0], list[float]()

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    (tmp_path / "night" / "global_step_2").mkdir(parents=True)
    data = tmp_path / "night" / "global_step_2" / "data.pt"
    data.write_bytes(b"x" * 1000)
    FolderStore(tmp_path / "mirror").begin()
    wanted = WantedFile("night/global_step_2/data.pt", 1000, data.stat().st_mtime)
    copier = MirrorCopier(tmp_path, {}, clock=clock, sleep=slept.append)
    order = UploadOrder(0, str(tmp_path / "mirror"), "night/global_step_2", "night-1.0", (wanted,))

    copier.copy(order)
    assert set(slept) == {0.5}, "as long as the piece took"
    copier._orders.extend([order, replace(order, attempt="night-1.9")])
    copier._thread = threading.current_thread()  # which works on the first one
    assert copier.take(order).copied_bytes == 1000
    assert copier.take(order).seconds > 1
    assert copier.take(replace(order, attempt="night-1.9")) == UploadState({}), "it waits for the first one"
    copier._urgent = True
    slept.clear()
    copier.copy(replace(order, attempt="night-1.1"))
    assert slept == []
    copier._urgent, copier._bytes_per_s = False, 100
    copier.copy(replace(order, attempt="night-1.2"))
    assert max(slept) == pytest.approx(9.5), "1000 bytes at 100 a second, less the half second that it took"
