"""What one node keeps: its logs, and the state of jobs that have ended; also where the volume does not do its part."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from child_processes import until
from patience import SLOWER

from cloudrl.logs.archive import Archive, FolderArchive, LogFile
from cloudrl.node import archiver as module
from cloudrl.node.archiver import Archiver
from cloudrl.protocol.ray_state import RayState
from cloudrl.saves.archive import FOLDER

SECRET = "the-secret-value"
SESSION = "session_2026-11-23_09-26-11_123456_42"


class FakeDashboard:
    """Ray's, in memory."""

    def __init__(self) -> None:
        self.listed: list[Any] | None = []
        self.tables: dict[str, list[Any]] = {"nodes": [{"node_id": "a"}]}
        self.silent: list[str] = []
        self.asked: list[str] = []

    def jobs(self) -> list[Any] | None:
        return self.listed

    def rows(self, kind: str, job_id: str | None) -> tuple[Any, ...] | None:
        self.asked.append(f"{kind} of {job_id}")
        return None if kind in self.silent else tuple(self.tables.get(kind, ()))


class Kept:
    """A node with its folders, and what it has kept."""

    def __init__(self, folder: Path, rank: int = 0, run: str = "run-1", session: str = SESSION) -> None:
        self.checkpoints, self.own = folder / "checkpoints", folder / f"own-{rank}"
        self.logs = folder / str(rank) / session / "logs"
        self.own.mkdir(exist_ok=True)
        self.is_up, self.dashboard, self.said = False, FakeDashboard(), list[str]()
        self.secrets = [SECRET]
        dashboard: Any = self.dashboard
        self.archiver = Archiver(
            self.checkpoints, run, {"rank": rank, "ip": "10.0.0.1"}, own_logs=self.own, ray_logs=self._ray_logs,
            secrets=self._secrets, dashboard=dashboard, say=self.said.append,
        )  # fmt: skip

    def _secrets(self) -> list[str]:
        return self.secrets

    def _ray_logs(self) -> Path | None:
        return self.logs if self.is_up else None

    def start_ray(self) -> None:
        self.is_up = True
        self.logs.mkdir(parents=True)

    @property
    def archive(self) -> Archive:
        return Archive(FolderArchive(self.checkpoints))

    def texts(self) -> dict[str, list[str]]:
        archive = self.archive
        return {each.path: list(archive.lines(each)) for each in archive.files}

    def state(self, job: str = "job") -> RayState | None:
        return self.archive.state(job)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


@pytest.fixture
def up(kept: Kept) -> Kept:
    """One whose Ray is up."""
    kept.start_ray()
    kept.archiver.update()
    return kept


def test_nothing_is_written_before_ray_is_up(kept: Kept) -> None:
    (kept.own / "agent.log").write_text("hello\n")
    kept.archiver.update()
    kept.archiver.keep_states(is_last=True)
    assert not kept.checkpoints.exists()
    kept.start_ray()
    kept.archiver.update()
    assert kept.texts()["agent/agent.log"] == ["hello"]
    assert json.loads(kept.texts()["agent/node.json"][0]) == {"rank": 0, "ip": "10.0.0.1"}


def test_it_goes_on_by_itself_until_the_end(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    kept.archiver.start()
    kept.start_ray()
    (kept.logs / "raylet.out").write_text("one\nno end")
    until(lambda: kept.texts().get("logs/raylet.out") == ["one"], "the line is kept")
    kept.archiver.before_ray_ends()
    kept.archiver.finish()
    assert kept.texts()["logs/raylet.out"] == ["one", "no end"]


def test_the_state_of_a_job_that_has_ended(up: Kept) -> None:
    running = {"submission_id": "job", "job_id": "01000000", "status": "RUNNING"}
    up.dashboard.listed = [running]
    up.archiver.keep_states()
    assert up.state() is None
    up.dashboard.listed = [{**running, "status": "FAILED", "runtime_env": {"env_vars": {"A": "b"}}}]
    up.dashboard.tables["tasks"] = [{"error_message": f"with {SECRET} " + "x" * 50_000}]
    up.archiver.keep_states()
    state = up.state()
    assert state is not None
    assert state.job == {**running, "status": "FAILED"}
    [task] = state.tasks
    assert task["error_message"].startswith("with *** xxx")
    assert len(task["error_message"]) < 21_000
    assert "tasks of 01000000" in up.dashboard.asked


def test_a_job_is_looked_at_twice_since_news_may_come_late(up: Kept) -> None:
    up.dashboard.listed = [{"submission_id": "job", "job_id": "01000000", "status": "FAILED"}]
    for number in range(4):
        up.dashboard.tables["workers"] = [{"pid": number}]
        up.archiver.keep_states()
    state = up.state()
    assert state is not None
    assert state.workers == ({"pid": 1},)


@pytest.mark.parametrize("silent", ["nodes", "tasks"])
def test_a_ray_that_answers_no_more_takes_nothing_away(up: Kept, silent: str) -> None:
    up.dashboard.listed = [{"submission_id": "job", "job_id": "01000000", "status": "FAILED"}]
    up.dashboard.tables["tasks"] = [{"task_id": "t"}]
    up.archiver.keep_states()
    up.dashboard.tables, up.dashboard.silent = {}, [silent]
    up.archiver.before_ray_ends()
    state = up.state()
    assert state is not None
    assert (state.nodes, state.tasks) == (({"node_id": "a"},), ({"task_id": "t"},))


def test_a_state_that_could_not_be_written_is_kept_later(up: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    up.dashboard.listed = [{"submission_id": "job", "status": "FAILED"}]
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", _refuse)
        for _ in range(3):
            up.archiver.keep_states()
    assert up.archiver.problem == "No space left on device"
    up.archiver.keep_states()
    assert up.state() is not None
    assert up.archiver.problem == ""


def test_secrets_that_are_forgotten_are_masked_until_the_end(up: Kept) -> None:
    up.archiver.update()
    up.secrets = ["one-of-later"]
    (up.logs / "raylet.out").write_text(f"{SECRET} one-of-later\n")
    up.archiver.finish()
    assert up.texts()["logs/raylet.out"] == ["*** ***"]


def test_secrets_that_are_forgotten_while_another_thread_copies(up: Kept) -> None:
    up.secrets = ["one-of-later"]
    (up.logs / "raylet.out").write_text("one-of-later\n")
    with up.archiver._lock:
        assert not up.archiver.update(wait_s=0)
    up.secrets = []
    up.archiver.update()
    assert up.texts()["logs/raylet.out"] == ["***"]


def test_nothing_unforeseen_ends_the_thread(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    kept.start_ray()
    kept.secrets = [7]  # type: ignore[list-item]
    kept.dashboard.listed = ["no job"]
    (kept.logs / "raylet.out").write_text("one\n")
    kept.archiver.start()
    until(lambda: kept.archiver.problem, "the problem is told")
    assert "AttributeError" in kept.archiver.problem
    kept.secrets, kept.dashboard.listed = [], []
    until(lambda: not kept.archiver.problem and "logs/raylet.out" in kept.texts(), "it goes on")
    kept.archiver.before_ray_ends()


def test_a_slow_ray_holds_up_no_copies(up: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Ending(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return len(pauses) > 2

    monkeypatch.setattr(up.archiver, "_ending", Ending())
    monkeypatch.setattr(up.archiver, "keep_states", lambda: time.sleep(0.6))
    up.archiver._run_for_ever()
    assert pauses == [module.EVERY_S] * 3


def test_a_volume_that_hangs_is_told(up: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 0.01)
    with up.archiver._lock:
        found = up.archiver.listing(None)
    assert found == {"problem": "the volume does not answer", "run": "run-1", "pieces": []}


def _refuse(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_of_a_job_that_never_came_to_ray_others_failures_are_not_kept(up: Kept) -> None:
    """Ray gives those of all jobs where it is asked for none."""
    up.dashboard.listed = [{"submission_id": "job", "job_id": None, "status": "FAILED"}]
    up.dashboard.tables.update(tasks=[{"error_type": "of another job"}], actors=[{"pid": 7}])
    up.archiver.keep_states()
    state = up.state()
    assert state is not None
    assert (state.tasks, state.actors, state.nodes) == ((), (), ({"node_id": "a"},))


def test_at_the_end_a_job_that_runs_counts_too_and_a_driver_of_nobodys(up: Kept) -> None:
    up.dashboard.listed = [{"submission_id": "job", "status": "RUNNING"}, {"job_id": "02000000", "status": "RUNNING"}]
    up.archiver.before_ray_ends()
    assert (up.state("job"), up.state("02000000")) != (None, None)
    assert not list(up.checkpoints.rglob("*.part"))


def test_a_volume_that_cannot_be_written_is_told_once(up: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    (up.logs / "raylet.out").write_text("one\n")
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", _refuse)
        for _ in range(3):
            up.archiver.update()
        assert up.archiver.listing(None)["problem"] == "No space left on device"
        up.dashboard.listed = [{"submission_id": "job", "status": "FAILED"}]
        up.archiver.keep_states()
    [said] = up.said
    assert said.startswith(f"warning: logs cannot be kept in {up.checkpoints / FOLDER}: ")
    up.archiver.keep_states()
    assert up.archiver.listing(None)["problem"] == ""
    assert up.texts()["logs/raylet.out"] == ["one"]


def test_no_volume_at_all(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.checkpoints.write_text("no folder")
    kept.start_ray()
    kept.archiver.update()
    kept.archiver.before_ray_ends()
    kept.archiver.finish()
    assert len(kept.said) == 1
    assert kept.checkpoints.read_text() == "no folder"


@pytest.mark.parametrize("step", ["before_ray_ends", "finish"])
def test_a_volume_or_a_ray_that_hangs_holds_up_no_end(up: Kept, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    over = threading.Event()

    def wait(**_: object) -> None:
        over.wait(30 * SLOWER)

    monkeypatch.setattr(module, "LAST_S", 0.05)
    monkeypatch.setattr(up.dashboard, "jobs", wait)
    monkeypatch.setattr(up.archiver, "update", wait)
    before = time.monotonic()
    getattr(up.archiver, step)()
    assert time.monotonic() - before < 5 * SLOWER
    over.set()


def test_the_listing_is_of_one_run(tmp_path: Path) -> None:
    for run in ("run-1", "run-2"):
        kept = Kept(tmp_path, run=run, session=f"session_{run}")
        kept.start_ray()
        (kept.logs / "raylet.out").write_text("x\n")
        kept.archiver.update()
    assert {each["path"].split("/")[0] for each in kept.archiver.listing(None)["pieces"]} == {"run-2"}
    assert {each["path"].split("/")[0] for each in kept.archiver.listing("run-1")["pieces"]} == {"run-1"}
    assert kept.archiver.listing("gone") == {"problem": "", "run": "gone", "pieces": []}


def _sessions(files: tuple[LogFile, ...]) -> list[tuple[int, str]]:
    return sorted({(each.rank, each.session.rpartition("_")[2]) for each in files})


@pytest.mark.parametrize(("sessions", "size", "left"), [(3, 1 << 30, [3, 4, 5]), (20, 200, [4, 5])])
def test_old_sessions_of_this_rank_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sessions: int, size: int, left: list[int]
) -> None:
    """Each has about 140 bytes here."""
    monkeypatch.setattr(module, "_SESSIONS", sessions)
    monkeypatch.setattr(module, "_SESSIONS_BYTES", size)
    for number in range(6):
        for rank in (0, 1) if number == 0 else (0,):
            kept = Kept(tmp_path, rank, run=f"run-{number // 2}", session=f"session_{number}")
            kept.start_ray()
            (kept.logs / "raylet.out").write_text(os.urandom(50).hex() + "\n")
            kept.archiver.update()
            _let_grow_old(kept.checkpoints)
    assert _sessions(kept.archive.files) == [*((0, str(each)) for each in left), (1, "0")]


def _let_grow_old(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9))


def test_a_session_of_a_cluster_that_is_up_does_not_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SESSIONS", 1)
    for number in range(3):
        kept = Kept(tmp_path, run=f"run-{number}", session=f"session_{number}")
        kept.start_ray()
        kept.archiver.update()
        if number == 0:
            _let_grow_old(kept.checkpoints)
    assert _sessions(kept.archive.files) == [(0, "1"), (0, "2")]
