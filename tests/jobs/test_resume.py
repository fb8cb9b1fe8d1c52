"""From which step a job of a run's name goes on, on two nodes with disks of their own."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from child_processes import until
from fake_cluster import FakeCluster
from small_step import as_sft, write_step

from cloudrl import RunningCluster
from cloudrl.errors import CheckpointError, ConnectionFailed, InputError
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.draft import JobDraft
from cloudrl.jobs.pipeline import choose_verl, name_run, note_surprises, plan_resume
from cloudrl.jobs.submit import take_snapshot
from cloudrl.protocol.folders import ON_HEAD, TRAINING_NODES
from cloudrl.spec import Job
from cloudrl.transport import Connection

pytestmark = pytest.mark.io
JOB = Job(name="own", device="cpu", entrypoint=["python3", "-m", "own"])
PLACED = Job(name="own", device="cpu", entrypoint=["python3", "-m", ON_HEAD, "own"])


class Lab:
    """A READY cluster whose run `mine` has two steps of two ranks, each rank's files on its own node's disk."""

    def __init__(self, folder: Path, fake: FakeCluster) -> None:
        self.fake = fake
        for step in (1, 2):
            write_step(folder / "whole" / "mine", step)
        fake.hold_run(folder / "whole" / "mine", folder)
        self.disks = list(fake.disks.values())
        self.connection = fake.connection()

    def step(self, number: int, rank: int) -> Path:
        return self.disks[rank] / "mine" / f"global_step_{number}"

    def resume(self, name: str | None = "mine", **overrides: str | int) -> tuple[str | None, tuple[str, ...]]:
        """The folder that the job is told to go on from, and what is said."""
        named = {f"trainer.{key}": value for key, value in overrides.items()}
        return resumed(self.connection, name, named)

    @property
    def addresses(self) -> list[str]:
        return [node["ip"] for node in self.fake.status["nodes"]]

    def swap_addresses(self) -> None:
        for node, ip in zip(self.fake.status["nodes"], ("10.0.0.9", "10.0.0.2"), strict=True):
            node["ip"] = ip

    def placed(self, **overrides: str | int) -> JobDraft:
        """The plan of a job whose command can choose the nodes of its ranks."""
        self.fake.status["facts"] |= {"places_controllers": True, "places_training": True}
        named = {f"trainer.{key}": value for key, value in overrides.items()}
        return planned(self.connection, "mine", named, PLACED)

    def refused(self, resume: Callable[[], object] | None = None) -> str:
        with pytest.raises(CheckpointError) as caught:
            (resume or self.resume)()
        assert "cloudrl checkpoints list --cluster lab" in str(caught.value.hint)
        assert "trainer.resume_mode=disable" in str(caught.value.hint)
        return caught.value.message


def planned(connection: Connection, name: str | None, named: dict[str, Any], job: Job) -> JobDraft:
    options = SubmitOptions(name=name, overrides=named, durable=False)
    snapshot = take_snapshot(connection, job, options, {})
    draft = JobDraft(job=job, options=options, cluster=snapshot.cluster, overrides=named)
    return plan_resume(choose_verl(name_run(draft, snapshot), snapshot), snapshot)


def resumed(connection: Connection, name: str | None, named: dict[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    plan = planned(connection, name, named, JOB)
    assert plan.variables == {}
    if plan.overrides == named:
        return None, plan.notes
    assert named.items() <= plan.overrides.items()
    assert plan.overrides["trainer.resume_mode"] == "resume_path"
    return plan.overrides["trainer.resume_from_path"], plan.notes


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with FakeCluster() as fake:
        yield Lab(tmp_path, fake)


DATA = "its data.pt is on node 0 alone: where verl's controller runs elsewhere, the data begins anew"


def test_the_newest_step_wherever_the_controller_runs(lab: Lab) -> None:
    """verl's tracker is on one node alone; on another the job would begin at step 0 without a word."""
    folder = "/vol/checkpoints/mine/global_step_2"
    assert lab.resume() == (folder, ("run 'mine' continues from step 2", DATA))


def test_a_run_that_has_done_its_steps_is_refused_before_anything_is_sent(lab: Lab) -> None:
    for total in (1, 2):
        with pytest.raises(InputError, match=f"run 'mine' has done its {total} steps") as caught:
            lab.resume(total_training_steps=total)
        assert caught.value.hint == f"Go on: --steps {2 + total}\nBegin another run: --name mine-2"


def test_one_with_steps_left_says_how_many_and_one_that_only_validates_may(lab: Lab) -> None:
    assert lab.resume(total_training_steps=5)[1][0] == "run 'mine' continues from step 2 of 5"
    assert lab.resume(total_training_steps=2, val_only="True")[0] == "/vol/checkpoints/mine/global_step_2"


def test_where_a_durable_job_begins_is_said_once(lab: Lab) -> None:
    """Its agents plan each attempt when it starts, so verl's `resume_mode=auto` stays."""
    options = SubmitOptions(name="mine", durable=True)
    snapshot = take_snapshot(lab.connection, PLACED, options, {})
    named = name_run(JobDraft(job=PLACED, options=options, cluster=snapshot.cluster, overrides={}), snapshot)
    planned = plan_resume(choose_verl(named, snapshot), snapshot).overriding({"trainer.resume_mode": "auto"})
    notes = note_surprises(planned, snapshot).notes
    assert [note for note in notes if "continues from" in note] == ["run 'mine' continues from step 2"]


def test_a_new_name_starts_from_step_1(lab: Lab) -> None:
    """The cluster is up and was asked: no "if there is one"."""
    assert lab.resume("fresh") == (None, ("run 'fresh' starts from step 1: the cluster has saved no step of it",))


def test_a_step_of_verls_sft_trainer(lab: Lab, tmp_path: Path) -> None:
    as_sft(write_step(tmp_path / "whole" / "sft", 3))
    lab.fake.hold_run(tmp_path / "whole" / "sft", tmp_path)
    said = ("run 'sft' continues from step 3", DATA.replace("data.pt", "data_0.pt"))
    assert lab.resume("sft") == ("/vol/checkpoints/sft/global_step_3", said)


def test_a_step_that_a_lost_machine_had_a_part_of_is_passed_over(lab: Lab) -> None:
    shutil.rmtree(lab.step(2, rank=1))
    assert lab.resume()[0] == "/vol/checkpoints/mine/global_step_1"


def test_a_machine_that_was_replaced(lab: Lab) -> None:
    shutil.rmtree(lab.disks[1])
    lab.disks[1].mkdir()
    assert lab.refused() == ("run 'mine' cannot go on: step 2: the actor lacks rank 1; step 1: the actor lacks rank 1")


def test_machines_whose_addresses_changed_places(lab: Lab) -> None:
    """verl numbers its ranks by the nodes' addresses."""
    lab.swap_addresses()
    said = "step 2: rank 0 is going to run on node 1, and its model_world_size_2_rank_0.pt is on node 0"
    assert said in lab.refused()


def test_a_command_of_ours_takes_its_ranks_to_machines_whose_addresses_changed_places(lab: Lab) -> None:
    assert lab.placed().variables == {}  # verl's own order will do
    lab.swap_addresses()
    plan = lab.placed()
    assert plan.variables == {TRAINING_NODES: "10.0.0.9,10.0.0.2"}
    assert plan.notes == ("run 'mine' continues from step 2",)  # its controller runs where data.pt is


def test_fewer_nodes_train_than_there_are(lab: Lab, tmp_path: Path) -> None:
    """A third one has come first in verl's order, and its disk is empty."""
    lab.fake.status["nodes"] = [*lab.fake.status["nodes"], {**lab.fake.status["nodes"][0], "rank": 2, "ip": "10.0.0.0"}]
    lab.fake.status["facts"] |= {"nodes": 3, "gpu_nodes": 3}
    lab.fake.disks[2] = tmp_path / "third"
    assert lab.resume(nnodes=2) == (None, ()), "verl chooses which"
    assert lab.placed(nnodes=2).variables == {TRAINING_NODES: ",".join(lab.addresses[:2])}
    said = "step 2: 2 ranks have saved the actor, and 1 would load it"
    assert said in lab.refused(lambda: lab.placed(nnodes=1))


def test_ranks_whose_files_are_all_on_one_node(lab: Lab) -> None:
    shutil.copytree(lab.step(2, 1), lab.step(2, 0), dirs_exist_ok=True)
    shutil.rmtree(lab.disks[1] / "mine")
    said = "step 2: no choice of 2 of the nodes has all files of its ranks: 0-1 on node 0"
    assert said in lab.refused(lab.placed)


def test_steps_of_an_attempt_that_was_given_up(lab: Lab) -> None:
    """The tracker is back at step 1, which was saved later than step 2."""
    (lab.disks[0] / "mine" / "latest_checkpointed_iteration.txt").write_text("1")
    assert lab.resume()[0] == "/vol/checkpoints/mine/global_step_2"  # newer than the tracked one
    for path in (path for disk in lab.disks for path in disk.rglob("global_step_2/**/*") if path.is_file()):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 1000))
    assert lab.resume()[0] == "/vol/checkpoints/mine/global_step_1"


def test_a_copy_of_another_save_is_not_the_rank_s_own(lab: Lab) -> None:
    """Attempts with the addresses in another order have left both ranks' files on both nodes."""
    for rank in (0, 1):
        for path in lab.step(2, rank).rglob(f"*_rank_{rank}.pt"):
            old = lab.step(2, 1 - rank) / path.relative_to(lab.step(2, rank))
            shutil.copy2(path, old)
            os.utime(old, (path.stat().st_atime, path.stat().st_mtime - 1000))
    lab.swap_addresses()
    assert "step 2: rank 0 is going to run on node 1" in lab.refused()


def test_another_number_of_ranks(lab: Lab) -> None:
    lab.fake.status["facts"]["gpus_per_node"] = 2
    assert "step 2: 2 ranks have saved the actor, and 4 would load it" in lab.refused()
    assert lab.resume(n_gpus_per_node=1)[0] == "/vol/checkpoints/mine/global_step_2"
    assert lab.resume(nnodes=1) == (None, ())


def test_a_node_without_gpus_is_no_place_for_a_rank(lab: Lab, tmp_path: Path) -> None:
    """The head of dstack's node groups; its address comes before all others."""
    head = {**lab.fake.status["nodes"][0], "rank": 2, "ip": "10.0.0.0", "gpus": 0}
    lab.fake.status["nodes"] = [*lab.fake.status["nodes"], head]
    lab.fake.disks[2] = tmp_path / "head"
    assert lab.resume()[0] == "/vol/checkpoints/mine/global_step_2"


def test_a_folder_that_all_nodes_share_has_all_of_it(lab: Lab, tmp_path: Path) -> None:
    lab.fake.disks = dict.fromkeys(range(2), tmp_path / "whole")
    lab.swap_addresses()
    assert lab.resume()[1] == ("run 'mine' continues from step 2",)


def test_a_node_that_is_silent_may_have_the_newest(lab: Lab) -> None:
    del lab.fake.disks[1]
    with pytest.raises(ConnectionFailed, match="it may have the newest step of the run"):
        lab.resume()


@pytest.mark.parametrize(
    ("key", "value"),
    [("resume_mode", "disable"), ("resume_from_path", "/elsewhere/global_step_1"), ("default_local_dir", "/elsewhere")],
)
def test_who_says_it_decides(lab: Lab, key: str, value: str) -> None:
    shutil.rmtree(lab.disks[1])
    assert lab.resume(**{key: value}) == (None, ())


def test_where_there_is_nothing_to_go_on_from(lab: Lab) -> None:
    new = "run 'another' starts from step 1: the cluster has saved no step of it"
    assert (lab.resume("another"), lab.resume(None)) == ((None, (new,)), (None, ()))
    lab.fake.status["facts"]["verl_version"] = "0.1"
    assert lab.resume() == (None, ()), "a verl that cannot go on"
    assert resumed(Connection(lab.fake.url, lab.fake.url, lab.fake.token), "mine", {}) == (None, ())


def test_a_job_from_python_is_sent_with_it(lab: Lab) -> None:
    RunningCluster(lab.connection).submit(JOB, name="mine", submission_id="again")
    until(lambda: "again" in lab.fake.jobs, "it is submitted")
    sent = lab.fake.jobs["again"].body["entrypoint"]
    assert "trainer.resume_mode=resume_path" in sent
    assert "trainer.resume_from_path=/vol/checkpoints/mine/global_step_2" in sent
    with pytest.raises(InputError, match="run 'mine' is still running as job again, which saves into the same folder"):
        RunningCluster(lab.connection).submit(JOB, name="mine", submission_id="twice")
    lab.fake.end("again")
    os.remove(lab.step(2, rank=0) / "actor" / "model_world_size_2_rank_0.pt")
    RunningCluster(lab.connection).submit(JOB, name="mine", submission_id="third")
    assert "global_step_1" in lab.fake.jobs["third"].body["entrypoint"]
