"""What is found out about a cluster before it is ended, and what has to be asked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_local import FakeLocal, rent_disks

import cloudrl
from cloudrl.errors import InputError
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.phases import Phase
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.providers.model import CheckpointRetention, Status
from cloudrl.sdk import teardown
from cloudrl.sdk.callbacks import Question
from cloudrl.sdk.teardown import TeardownImpact, assess
from cloudrl.sdk.training import reasons_to_keep

pytestmark = pytest.mark.io

READY = Status(ClusterFacts("lab", "", "dstack", 2), Phase.READY)
LOST = CheckpointRetention(destroyed=True, location="on the machines' own disks")
KEPT = CheckpointRetention(destroyed=False, location="on network volume ckpt")
LOCAL = LocalProvider()


class Cloud:
    """A provider that has a cluster with that status."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def status(self, _name: str) -> Status:
        return self._status

    def attach(self, _name: str) -> Any:
        raise InputError("not there")


@pytest.fixture
def rented(lab: FakeLocal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, each with its shard on its own node, whose disks go with it."""
    rent_disks(monkeypatch)
    for rank in (0, 1):
        disk = tmp_path / f"disk-{rank}"
        actor = disk / "grpo" / "global_step_10" / "actor"
        actor.mkdir(parents=True)
        (actor / f"model_world_size_2_rank_{rank}.pt").write_bytes(b"x" * 1000)
        lab.cluster.disks[rank] = disk


@pytest.mark.usefixtures("rented")
class TestWhatLiesOnDisksThatGo:
    def test_is_listed(self) -> None:
        impact = assess(LOCAL, "lab")
        assert impact.lost_with is not None
        assert impact.checkpoints[0].startswith("grpo, step 10, actor, 2.0 kB, ranks 0 on node 0; 1 on node 1")
        assert impact.loss_text == "1 checkpoint, 2.0 kB"
        [notice] = impact.notices()
        assert notice.text.startswith("These checkpoints exist only on the machines' own disks:\n  grpo,")

    def test_may_be_on_a_node_that_is_silent(self, lab: FakeLocal, tmp_path: Path) -> None:
        lab.cluster.disks = {0: tmp_path / "none"}
        impact = assess(LOCAL, "lab")
        assert impact.lost_with is not None
        assert "node 1" in impact.checkpoints[0]
        assert impact.loss_text == "checkpoints that cannot be listed"

    def test_may_be_there_where_nobody_answers(self, lab: FakeLocal, monkeypatch: pytest.MonkeyPatch) -> None:
        connection = LOCAL.attach("lab")
        ready = LOCAL.status("lab")
        lab.cluster.down()
        monkeypatch.setattr(LocalProvider, "status", lambda *_: ready)
        monkeypatch.setattr(LocalProvider, "attach", lambda *_: connection)
        assert "they cannot be listed" in assess(LOCAL, "lab").checkpoints[0]
        lab.cluster.up()

    def test_is_nothing_where_nothing_was_saved(self, lab: FakeLocal, tmp_path: Path) -> None:
        lab.cluster.disks = {0: tmp_path / "none", 1: tmp_path / "none"}
        assert assess(LOCAL, "lab").lost_with is None


def test_what_stays_is_not_asked_for(lab: FakeLocal) -> None:
    impact = assess(LOCAL, "lab")
    assert impact.lost_with is None
    assert impact.checkpoints == ()
    assert not [path for _, path in lab.cluster.requests if "inventory" in path]


@pytest.mark.parametrize("phase", ["provisioning", "fetch", "down", "failed", "ended"])
def test_a_cluster_that_is_not_up_has_none(phase: str) -> None:
    cloud: Any = Cloud(Status(ClusterFacts("lab", "", "dstack", 2), Phase(phase), retention=LOST))
    assert assess(cloud, "lab").lost_with is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"phase": Phase.RUNNING},
        {"phase": Phase.PROVISIONING, "previous_attempts": ({"attempt": 0},)},
        {"phase": Phase.FETCH, "ready_at": 1.0},
    ],
)
def test_one_that_cannot_be_reached_may_have_some(changes: dict[str, Any]) -> None:
    status = replace(READY, **changes)
    cloud: Any = Cloud(replace(status, retention=LOST))
    assert "they cannot be listed" in assess(cloud, "lab").checkpoints[0]
    cloud = Cloud(replace(status, retention=KEPT))
    assert assess(cloud, "lab").checkpoints == ()


def test_a_long_list_shows_the_latest() -> None:
    steps = tuple(f"step {step}" for step in range(30))
    [notice] = TeardownImpact(READY, (), LOST.location, steps).notices()
    lines = notice.text.splitlines()
    assert (lines[1], lines[-1], len(lines)) == ("  (10 more)", "  step 29", 22)


class TestWhatIsAsked:
    def asked(self, impact: TeardownImpact, *, answer: bool = True) -> list[Question]:
        questions: list[Question] = []

        def confirm(question: Question) -> bool:
            questions.append(question)
            return answer

        teardown._ask(impact, confirm, lambda _update: None)
        return questions

    @pytest.mark.parametrize("jobs", [(), None])
    def test_nothing_of_one_that_is_over(self, jobs: tuple[str, ...] | None) -> None:
        assert self.asked(TeardownImpact(replace(READY, phase=Phase.FAILED, owner="alice"), jobs)) == []

    def test_jobs_that_are_seen_need_nobody_to_be_there(self) -> None:
        impact = TeardownImpact(READY, ("Job-1",))
        [question] = self.asked(impact)
        assert (question.text, question.default) == ("End cluster lab? Jobs are running on it: Job-1.", True)
        with pytest.raises(InputError, match="lab is left as it is"):
            self.asked(impact, answer=False)

    def test_another_users_need_somebody(self) -> None:
        [question] = self.asked(TeardownImpact(replace(READY, owner="alice"), None))
        assert question.text == "End cluster lab? It is alice's; it is unknown whether jobs are running on it."
        assert question.default is None


def test_a_run_keeps_one_that_was_there_and_does_not_answer(lab: FakeLocal) -> None:
    """The jobs may be those of others. On one that it has started itself they are its own."""
    impact = TeardownImpact(replace(READY, phase=Phase.RUNNING), None)
    attached = cloudrl.attach("lab")
    others, own = reasons_to_keep(impact, attached)
    assert (others, own) == (["it is unknown whether jobs are running on it"], ["it was up before this run"])
    started = cloudrl.RunningCluster(attached.connection, provider="local", owned=True)
    assert reasons_to_keep(impact, started) == ([], [])
