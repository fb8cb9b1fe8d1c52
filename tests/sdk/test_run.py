"""`cloudrl.run`, towards a stand-in cluster that is up."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_local import FakeLocal

import cloudrl
from cloudrl.jobs import SubmitOptions, run_plan
from cloudrl.jobs.draft import Snapshot
from cloudrl.providers.dstack.fleet import NoFleet
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.providers.model import Offer, Plan, Price
from cloudrl.providers.registry import provider
from cloudrl.sdk.callbacks import Notice, Question
from cloudrl.sdk.runs import plan_run
from cloudrl.spec import Job

pytestmark = pytest.mark.io


def test_a_cluster_that_is_up_takes_the_job(lab: FakeLocal) -> None:
    done = cloudrl.run("grpo-tiny", {"trainer.test_freq": 5}, cluster="lab", steps=2, submission_id="one", wait=False)
    assert (done.cluster.provider, done.job.submission_id, done.job.total_steps) == ("local", "one", 2)
    assert "trainer.test_freq=5" in lab.cluster.jobs["one"].body["entrypoint"]


def test_one_that_is_declared_otherwise_is_refused(lab: FakeLocal) -> None:
    declared = cloudrl.Cluster(name="lab", nodes=4, data=["addition"], models=["tiny-adder"])
    with pytest.raises(cloudrl.InputError, match="is up with 2 nodes, but 4 are requested"):
        cloudrl.run("grpo-tiny", cluster=declared, on="local")
    assert lab.cluster.jobs == {}


def test_a_job_over_tcp_is_asked_about_before_it_is_sent(lab: FakeLocal) -> None:
    unused = "rdmap16s27: EFA without a plug-in; NCCL will use TCP"
    lab.cluster.status["facts"].update(gpu_nodes=2, unused_network=unused)
    lab.cluster.status["nodes"][1]["warnings"] = [{"text": unused, "remedy": "another image", "kind": "network"}]
    said, asked = list[object](), list[Question]()

    def refuse(question: Question) -> bool:
        asked.append(question)
        return False

    with pytest.raises(cloudrl.InputError, match="nothing was submitted") as caught:
        cloudrl.run("grpo-tiny", cluster="lab", steps=2, confirm=refuse, on_progress=said.append)
    assert str(caught.value.hint).startswith("What the nodes lack: cloudrl status lab")
    assert [question.text.startswith(unused) for question in asked] == [True]
    assert Notice(f"warning: rank 1: {unused}", "another image") in said
    assert lab.cluster.jobs == {}
    cloudrl.run("grpo-tiny", cluster="lab", steps=2, wait=False)
    assert len(lab.cluster.jobs) == 1, "without a terminal it is slow, not wrong"


def raising(error: BaseException, before: Callable[[], object] = lambda: None) -> Callable[..., None]:
    """Raises an error, whatever it is called with."""

    def function(*_: object, **__: object) -> None:
        before()
        raise error

    return function


class TestAJobThatIsNotSubmitted:
    """After its cluster was started; the stand-in is up, and `Cluster.up` takes it for its own."""

    @pytest.fixture(autouse=True)
    def starts(self, lab: FakeLocal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(LocalProvider, "up", lambda self, _plan, **_: self.attach("lab"))
        monkeypatch.setattr("cloudrl.jobs.run_plan.find_running", lambda *_, **__: None)

    def test_a_refused_one_takes_its_cluster_with_it(self, lab: FakeLocal) -> None:
        lab.cluster.add("one", status="SUCCEEDED")
        with pytest.raises(cloudrl.InputError, match="cluster lab is ended again"):
            cloudrl.run("grpo-tiny", cluster="lab", steps=2, submission_id="one")
        assert provider("local").status("lab").phase == "down"

    def test_nor_does_one_stay_whose_run_cannot_be_resumed(
        self, lab: FakeLocal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refuse = raising(cloudrl.CheckpointError("run 'mine' cannot go on"))
        monkeypatch.setattr("cloudrl.saves.resume.plan_resume", refuse)
        with pytest.raises(cloudrl.CheckpointError, match="cannot go on; cluster lab is ended again"):
            cloudrl.run("grpo-tiny", cluster="lab", name="mine")
        assert provider("local").status("lab").phase == "down"

    def test_otherwise_the_error_says_that_it_goes_on(self, lab: FakeLocal) -> None:
        lab.cluster.down()
        with pytest.raises(cloudrl.ConnectionFailed, match="cluster lab keeps running") as caught:
            cloudrl.run("grpo-tiny", cluster="lab", steps=2)
        assert "cloudrl down lab" in str(caught.value.hint)
        lab.cluster.up()

    @pytest.mark.parametrize("arrives", [False, True])
    def test_with_down_it_ends_whatever_the_error_unless_a_job_runs(
        self, lab: FakeLocal, monkeypatch: pytest.MonkeyPatch, arrives: bool
    ) -> None:
        """The request may have come through, and its answer not."""
        no_answer = cloudrl.ConnectionFailed("nobody answers")
        before = (lambda: lab.cluster.add("one")) if arrives else (lambda: None)
        monkeypatch.setattr("cloudrl.jobs.send", raising(no_answer, before))
        state, phase = ("keeps running", "ready") if arrives else ("is ended again", "down")
        with pytest.raises(cloudrl.ConnectionFailed, match=f"nobody answers; cluster lab {state}"):
            cloudrl.run("grpo-tiny", cluster="lab", steps=2, down=True)
        assert provider("local").status("lab").phase == phase

    def test_unless_it_is_to_be_kept(self, lab: FakeLocal) -> None:
        lab.cluster.add("one", status="SUCCEEDED")
        with pytest.raises(cloudrl.InputError, match="cluster lab keeps running"):
            cloudrl.run("grpo-tiny", cluster="lab", steps=2, submission_id="one", down=False)
        assert provider("local").status("lab").phase == "ready"


def test_what_is_here_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look converts data and calls the reward function; offers are judged by the same one."""
    looks, look = list[str](), run_plan.expected_snapshot

    def counted(planned: Plan, job: Job, options: SubmitOptions, **shell: Any) -> Snapshot:
        looks.append(job.name)
        return look(planned, job, options, **shell)

    monkeypatch.setattr(run_plan, "expected_snapshot", counted)
    request = plan_run("grpo-tiny", SubmitOptions(), None, "local")
    request.check()
    request.render()
    offer = Offer("aws", "us-east-1", "p5", "8xH100", 98.0, spot=False, gpu="H100:80GB:8")
    list(request.memory_of_offers(replace(request.plan, price=Price(98.0, (offer,)))))
    assert looks == ["grpo-tiny"]


class TestAFleetThatIsCreatedForTheCluster:
    """Nothing is rented before both questions are answered."""

    @pytest.fixture(autouse=True)
    def none_fits(self, lab: FakeLocal, monkeypatch: pytest.MonkeyPatch) -> None:
        declared = cloudrl.Cluster(name="lab", nodes=2)
        no_fleet = NoFleet("none fits", hint="", fleet=cloudrl.Fleet(name="new"), cluster=declared)
        monkeypatch.setattr("cloudrl.jobs.run_plan.find_running", lambda *_, **__: None)
        monkeypatch.setattr(cloudrl.Cluster, "up", raising(no_fleet))

    def test_is_not_there_yet_when_its_own_question_is_interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cloudrl.Fleet, "create", raising(KeyboardInterrupt()))
        with pytest.raises(cloudrl.Interrupted, match="nothing was started") as caught:
            plan_run("grpo-tiny", SubmitOptions(), "lab", "local").execute(create_fleet=True)
        assert caught.value.hint is None

    @pytest.mark.parametrize("answer", [None, True])
    def test_is_not_rented_in_place_of_ones_own_machines_without_a_yes(
        self, monkeypatch: pytest.MonkeyPatch, answer: bool | None
    ) -> None:
        declared, created, asked = cloudrl.Cluster(name="lab", nodes=2), list[str](), list[Question]()
        no_fleet = NoFleet(
            "none fits", hint="", fleet=cloudrl.Fleet(name="new"), cluster=declared, own_fleets=("rack",)
        )
        monkeypatch.setattr(cloudrl.Cluster, "up", raising(no_fleet))
        monkeypatch.setattr(cloudrl.Fleet, "create", lambda fleet, **_: created.append(fleet.name))
        monkeypatch.setattr("cloudrl.sdk.runs.plan_to_start", raising(cloudrl.InputError("nothing was started")))

        def confirm(question: Question) -> bool:
            asked.append(question)
            return bool(answer if answer is not None else question.default)

        with pytest.raises(cloudrl.CloudrlError, match="nothing was started") as caught:
            plan_run("grpo-tiny", SubmitOptions(), "lab", "local").execute(create_fleet=True, confirm=confirm)
        assert created == (["new"] if answer else [])
        assert "in place of your own machines (fleet rack)" in asked[0].text
        assert asked[0].explicit
        assert ("To rent: cloudrl fleet create new" in str(caught.value.hint)) is not answer

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), cloudrl.InputError("nothing was started")])
    def test_is_named_when_there_is_no_cluster_after_all(
        self, monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        monkeypatch.setattr(cloudrl.Fleet, "create", lambda *_, **__: None)
        monkeypatch.setattr("cloudrl.sdk.runs.plan_to_start", raising(error))
        with pytest.raises(cloudrl.CloudrlError, match="nothing was started") as caught:
            plan_run("grpo-tiny", SubmitOptions(), "lab", "local").execute(create_fleet=True)
        assert caught.value.hint == "Fleet new costs nothing without a cluster; delete it: cloudrl fleet delete new"
