"""Rank 0 follows a training by heartbeats: its phase, looks on suspicion only, and what two of them say alike."""

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ras_server import as_json

from cloudrl.hangs import ras
from cloudrl.node import hang_watch
from cloudrl.node.hang_watch import HangMonitor
from cloudrl.protocol.job_phases import Grade, Hang, JobState
from cloudrl.protocol.job_work import EndedPhase, Halted, JobWork, LookedAt, PhaseNote
from cloudrl.protocol.report import NodeReport
from cloudrl.saves.names import OURS

NOW = 1_700_000_000.0
REWARD = """\
Thread 301 (active): "uvloop_5"
    _wait (mine/reward.py:6)
    compute_score (mine/reward.py:11)
    run_single (verl/experimental/reward_loop/reward_manager/naive.py:60)
    run (concurrent/futures/thread.py:58)
    _worker (concurrent/futures/thread.py:83)
"""


class Dashboard:
    def __init__(self) -> None:
        self.running: list[dict[str, Any]] = [
            {"submission_id": "one", "job_id": "02", "status": "RUNNING", "start_time": NOW * 1000}
            | {"metadata": {"job_name": "mine"}, "entrypoint": "python3 -m verl.trainer.main_ppo trainer.nnodes=2"}
        ]
        self.groups: tuple[Any, ...] = ()
        self.actors: tuple[Any, ...] | None = ()
        self.nodes: tuple[Any, ...] = ({"node_id": "n", "state": "ALIVE", "resources_total": {"CPU": 8.0, "GPU": 1.0}},)
        self.used: dict[str, dict[str, float]] = {}
        self.ends: dict[str, float] = {}

    def jobs(self) -> list[dict[str, Any]]:
        return self.running

    def placement_groups(self) -> tuple[Any, ...]:
        return self.groups

    def rows(self, kind: str, job_id: str | None) -> tuple[Any, ...] | None:
        if kind == "nodes":
            return self.nodes
        assert (kind, job_id) == ("actors", "02")
        return self.actors

    def used_resources(self) -> dict[str, dict[str, float]]:
        return self.used

    def actor_ends(self, ids: Iterable[str]) -> dict[str, float]:
        return {actor: self.ends[actor] for actor in ids if actor in self.ends}


class Lab:
    """A monitor with a clock, heartbeats of two nodes, and looks that are counted."""

    def __init__(self, folder: Path) -> None:
        self.at, self.looks, self.work, self.look_s = 0.0, 0, JobWork(NOW), 0.0
        self.dashboard, self.reward, self.folder = Dashboard(), REWARD, folder
        self.ras, self.asked_ras, self.title = "", "", "ray::RewardLoopWorker"
        self.monitor = self.new_monitor()

    def new_monitor(self) -> HangMonitor:
        return HangMonitor(
            self.reports, self.dashboard, self.look, lambda: self.folder,  # type: ignore[arg-type]
            folder=self.folder, checkpoints=self.folder / "checkpoints", ask_ras=self.ask_ras,
            clock=lambda: self.at, now=lambda: NOW + self.at,
        )  # fmt: skip

    def reports(self) -> list[NodeReport]:
        return [NodeReport(0, "10.0.0.1", work=self.work), NodeReport(1, "10.0.0.2", work=JobWork(NOW))]

    def look(self, report: NodeReport) -> tuple[LookedAt, ...]:
        self.looks += 1
        self.at += self.look_s
        return (LookedAt(40, self.title, "S", stacks=self.reward),) if report.rank == 1 else ()

    def ask_ras(self, address: str) -> tuple[tuple[ras.Mismatch, ...], str]:
        self.asked_ras = address
        return ras.parse(self.ras), self.ras

    def phase(self, phase: str, *ended: EndedPhase) -> None:
        self.work = replace(self.work, note=PhaseNote("02", phase, NOW + self.at, ended))

    def run(self, seconds: float) -> JobState:
        for _ in range(int(seconds / 5)):
            self.at += 5
            self.monitor.tick()
        assert self.monitor.state is not None
        return self.monitor.state

    def hang(self) -> Hang:
        state = self.monitor.state
        assert state is not None
        assert state.hang is not None
        return state.hang


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_phase_with_its_age_and_what_is_usual(lab: Lab):
    ended = tuple(EndedPhase(number, "gen", 4.0) for number in range(1, 4))
    (lab.folder / "job-driver-one.log").write_text("step:7 - x\n")
    lab.phase("gen", *ended)
    state = lab.run(20)
    assert (state.submission_id, state.phase, state.since, state.usual_s, state.step) == ("one", "gen", NOW, 4.0, 8)
    assert state.hang is None


def test_after_its_end_there_is_no_job_to_follow(lab: Lab):
    lab.run(20)
    lab.dashboard.running[0]["status"] = "FAILED"
    for _ in range(4):
        lab.at += 5
        lab.monitor.tick()
    assert lab.monitor.state is None


def test_a_healthy_job_is_never_looked_at(lab: Lab):
    lab.work = JobWork(NOW, cores=3.0)
    for number in range(30):
        lab.phase("update_actor", *(EndedPhase(n, "update_actor", 60.0) for n in range(max(1, number - 9), number + 1)))
        assert lab.run(60).hang is None
    assert lab.looks == 0


def test_what_two_looks_blame_is_told_within_two_minutes(lab: Lab):
    lab.phase("gen", EndedPhase(1, "gen", 4.0))
    state = lab.run(90)
    assert (state.hang, lab.looks) == (None, 2)  # one look at each of two nodes
    lab.run(10)
    hang = lab.hang()
    [blame] = hang.blame
    assert (hang.grade, blame.rank, blame.frame) == (Grade.SUSPECTED, 1, "_wait (mine/reward.py:6)")
    assert "_wait (mine/reward.py:6)" in (lab.folder / hang.file).read_text()
    lab.run(300)
    assert lab.hang().grade is Grade.STILL


def test_looks_are_few(lab: Lab):
    lab.phase("gen", EndedPhase(1, "gen", 4.0))
    lab.run(600)
    assert lab.looks <= 2 * 7


def test_what_changes_between_two_looks_is_not_blamed(lab: Lab):
    lab.phase("gen", EndedPhase(1, "gen", 4.0))
    lab.run(75)
    assert lab.looks == 2
    lab.reward = REWARD.replace("reward.py:6", "reward.py:9")
    assert lab.run(35).hang is None


def test_a_hang_ends_with_its_phase(lab: Lab):
    lab.phase("gen", EndedPhase(1, "gen", 4.0))
    lab.run(100)
    lab.hang()
    lab.phase("update_actor", EndedPhase(1, "gen", 4.0), EndedPhase(2, "gen", 100.0))
    assert lab.run(10).hang is None


def test_a_stopped_rank_is_a_proof_after_a_minute(lab: Lab):
    lab.phase("update_actor", EndedPhase(1, "update_actor", 4.0))
    halted = Halted(31, "ray::WorkerDict.actor_rollout_update_actor", "T", 50.0)
    lab.work = replace(lab.work, cores=3.0, halted=(halted,))
    assert lab.run(10).hang is None
    lab.work = replace(lab.work, halted=(replace(halted, seconds=61.0),))
    lab.run(5)
    assert (lab.hang().grade, lab.hang().blame[0].pid) == (Grade.PROOF, 31)


def test_a_step_that_ends_disproves_what_older_heartbeats_say(lab: Lab):
    log = lab.folder / "job-driver-one.log"
    log.write_text("step:7 - x\n")
    halted = Halted(31, "ray::WorkerDict.actor_rollout_update_actor", "T", 61.0)
    lab.phase("update_actor", EndedPhase(1, "update_actor", 4.0))
    lab.work = replace(lab.work, halted=(halted,))
    lab.run(70)
    assert lab.hang().grade is Grade.PROOF
    log.write_text("step:7 - x\nstep:8 - x\n")
    state = lab.run(5)
    assert (state.step, state.hang) == (9, None)


def test_resources_that_no_node_has_are_a_proof(lab: Lab):
    row = {"state": "PENDING", "creator_job_id": "02", "bundles": [{"unit_resources": {"GPU": 16.0}}]}
    stats = {"creation_request_received_ns": str(int(NOW * 1e9)), "scheduling_state": "NO_RESOURCES"}
    lab.dashboard.groups, lab.reward = ({**row, "stats": stats},), ""
    assert lab.run(60).hang is None
    lab.run(20)
    assert lab.hang().grade is Grade.PROOF
    assert "16 free (no resources)" in lab.hang().blame[0].reason


def pending(actor_id: str, **resources: float) -> dict[str, Any]:
    return {
        "actor_id": actor_id, "job_id": "02", "class_name": "make.<locals>.Judge", "state": "PENDING_CREATION",
        "required_resources": resources, "placement_group_id": None,
    }  # fmt: skip


def test_an_actor_that_no_node_can_take_is_a_proof_within_a_minute(lab: Lab):
    lab.dashboard.actors, lab.reward = (pending("a", CPU=1.0, GPU=2.0),), ""
    assert lab.run(40).hang is None
    lab.run(15)
    hang = lab.hang()
    assert (hang.grade, hang.blame[0].actor) == (Grade.PROOF, "Judge")
    assert hang.blame[0].reason == "needs CPU 1, GPU 2 on one node, but no node has more than GPU 1"
    assert hang.remedy.startswith("Ask for less")
    lab.dashboard.actors = None  # Ray is too busy to answer
    lab.run(60)
    lab.hang()
    lab.dashboard.actors = ({**pending("a"), "state": "ALIVE"},)
    assert lab.run(20).hang is None


def test_an_actor_that_waits_for_what_others_hold_is_a_proof_after_a_minute(lab: Lab):
    lab.dashboard.actors, lab.reward, lab.dashboard.used = (pending("a", GPU=1.0),), "", {"n": {"GPU": 0.5}}
    assert lab.run(70).hang is None
    lab.run(20)
    assert lab.hang().blame[0].reason == "has waited 1 min 00 s for a node with GPU 1 free"
    lab.dashboard.used = {}
    assert lab.run(20).hang is None


def test_an_actor_whose_process_starts_slowly_waits_for_no_node(lab: Lab):
    lab.reward, lab.dashboard.actors = "", (pending("a", GPU=1.0), pending("b"), {**pending("c"), "job_id": "05"})
    assert lab.run(600).hang is None
    lab.dashboard.actors = ({**pending("a", GPU_group_0_x=1.0), "placement_group_id": "x"},)
    assert lab.run(100).hang is None


KILLED = {"error_message": "The actor is dead because it was killed by `ray.kill`."}


def dead(actor: str, name: str) -> dict[str, Any]:
    state = {"actor_id": actor, "job_id": "02", "class_name": name, "state": "DEAD"}
    return {**state, "death_cause": {"actor_died_error_context": KILLED}}


def test_an_actor_that_died_after_the_last_step_is_what_the_job_waits_for(lab: Lab):
    """And not one that a step has outlived, however short the time between them."""
    lab.reward, log = "", lab.folder / "job-driver-one.log"
    log.write_text("step:7 - x\n")
    lab.phase("gen", EndedPhase(1, "gen", 4.0))
    lab.run(40)
    log.write_text("step:7 - x\nstep:8 - x\n")
    lab.phase("old_log_prob", EndedPhase(1, "gen", 4.0), EndedPhase(2, "gen", 4.0), EndedPhase(3, "old_log_prob", 2.0))
    lab.run(10)
    lab.dashboard.actors = dead("a", "Judge"), dead("b", "TransferQueueStorage"), dead("c", "TransferQueueController")
    lab.dashboard.ends = {"a": NOW + 20, "b": NOW + 52, "c": NOW + 51}
    lab.run(100)
    assert lab.hang().grade == Grade.PROOF
    assert [blame.actor for blame in lab.hang().blame] == ["TransferQueueController", "TransferQueueStorage"]


def test_an_actor_that_died_before_the_first_step_is_what_the_job_waits_for(lab: Lab):
    lab.reward, lab.dashboard.actors = "", (dead("a", "AgentLoopWorker"),)
    lab.phase("init")
    lab.run(110)
    assert (lab.hang().grade, lab.hang().blame[0].actor) == (Grade.PROOF, "AgentLoopWorker")


def test_an_actor_that_the_job_has_outlived_proves_nothing(lab: Lab):
    """Nor does one of which Ray does not say when it died."""
    lab.reward, lab.dashboard.actors = "", (dead("a", "Sandbox"), dead("b", "Judge"))
    lab.work, lab.dashboard.ends = JobWork(NOW, cores=3.0), {"a": NOW - 60}
    (lab.folder / "job-driver-one.log").write_text("step:7 - x\n")
    lab.phase("gen", EndedPhase(1, "gen", 4.0))
    lab.run(5)
    lab.work = replace(lab.work, cores=0.0)
    assert lab.run(200).hang is None


def test_a_job_that_waits_for_a_debugger_does_not_hang(lab: Lab):
    lab.phase("gen", EndedPhase(1, "gen", 4.0))
    lab.work = replace(lab.work, is_paused=True)
    assert lab.run(1000).hang is None
    assert lab.looks == 0


def test_no_job_no_state(lab: Lab):
    lab.dashboard.running = []
    lab.monitor.tick()
    assert lab.monitor.state is None


def test_a_later_attempt_knows_what_is_usual(lab: Lab):
    lab.phase("gen", EndedPhase(1, "gen", 4.0))
    lab.run(20)
    [kept] = (lab.folder / "checkpoints").rglob("*.json")
    assert json.loads(kept.read_text())["seconds"] == {"gen": [4.0]}
    lab.monitor = lab.new_monitor()
    lab.phase("gen")
    assert lab.run(20).usual_s == 4.0


def test_without_timers_the_phase_is_that_of_the_titles(lab: Lab):
    lab.work = JobWork(NOW, cores=2.0, methods=("actor_rollout_update_actor",))
    assert lab.run(20).phase == "update_actor"


def test_a_rank_that_keeps_busy_waiters_waiting_is_named(lab: Lab):
    lab.phase("reward", EndedPhase(1, "reward", 4.0))
    lab.work = replace(lab.work, cores=3.0)
    lab.run(110)
    assert lab.monitor.state is not None
    assert lab.monitor.state.hang is None
    lab.run(30)
    assert (lab.hang().grade, lab.hang().blame[0].rank) == (Grade.SUSPECTED, 1)


def test_a_first_validation_is_not_suspected(lab: Lab):
    lab.phase("testing", EndedPhase(1, "gen", 4.0))
    assert lab.run(600).hang is None


def test_looks_that_take_long_hide_no_hang(lab: Lab):
    lab.phase("update_actor", EndedPhase(1, "update_actor", 4.0))
    lab.reward, lab.look_s = "", 40.0
    lab.run(60)
    lab.run(60)
    assert lab.hang().grade is Grade.STILL


def test_a_volume_that_does_not_answer_holds_up_no_look(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hang_watch, "_VOLUME_S", 0.05)
    folder = lab.folder / "checkpoints" / OURS / "phase-times"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "mine.json")  # to open it for reading waits for a writer
    lab.phase("save_checkpoint", EndedPhase(1, "save_checkpoint", 4.0))
    lab.run(600)
    assert lab.hang().grade is Grade.STILL
    os.close(os.open(folder / "mine.json", os.O_WRONLY))  # ends the thread


def test_a_rank_that_lags_by_nccls_own_monitor_is_proof_after_a_minute(lab: Lab):
    """The CPU is busy while ranks wait for each other on GPUs, and this look has no other blame."""
    lab.dashboard.running[0]["runtime_env"] = {"env_vars": {"NCCL_RAS_ADDR": "localhost:7"}}
    lab.work = JobWork(NOW, cores=2.0)
    lab.ras = as_json({0: {"AllReduce": 7}, 1: {"AllReduce": 6}}, host="192.168.0.2").replace('"pid": 101', '"pid": 40')
    lab.reward = REWARD.replace("compute_score", "update_actor")
    lab.phase("update_actor", *(EndedPhase(number, "update_actor", 10.0) for number in range(1, 4)))
    assert lab.run(120).hang is None
    lab.run(10)
    hang = lab.hang()
    assert hang.grade is Grade.PROOF
    assert hang.blame[0].reason == "lags behind: NCCL has launched 6 times AllReduce on it, 7 times on others"
    assert "AllReduce" in (lab.folder / hang.file).read_text()
    assert lab.asked_ras == "localhost:7"


def test_the_process_of_that_id_on_another_node_is_not_named(lab: Lab):
    """Rank 0 does not answer the look; in containers of one image its process may have the same id."""
    lab.ras = as_json({0: {"AllReduce": 7}, 1: {"AllReduce": 6}}, host="10.0.0.1").replace('"pid": 101', '"pid": 40')
    lab.reward = REWARD.replace("compute_score", "update_actor")
    lab.phase("update_actor", *(EndedPhase(number, "update_actor", 10.0) for number in range(1, 4)))
    lab.run(300)
    assert [blame for blame in lab.hang().blame if blame.reason.startswith(ras.REASON)] == []


def test_a_standstill_of_another_program_proves_nothing_about_the_jobs(lab: Lab):
    """Its counts have differed for two minutes, those of the job for half a minute."""
    lab.work = JobWork(NOW, cores=2.0)
    lab.reward = REWARD.replace("compute_score", "update_actor")
    lab.phase("update_actor", *(EndedPhase(number, "update_actor", 10.0) for number in range(1, 4)))
    others = as_json({0: {"AllReduce": 9}, 1: {"AllReduce": 1}}, host="192.168.0.2")
    lab.ras = others
    assert lab.run(130).hang is None
    both = json.loads(others)
    both["communicators"] += json.loads(others.replace("101", "40").replace(": 9", ": 7").replace("0xa", "0xc"))[
        "communicators"
    ]
    lab.ras = json.dumps(both)
    assert lab.run(60).hang is None
    lab.run(300)
    assert lab.hang().grade is Grade.PROOF
    assert lab.hang().blame[0].reason.startswith(ras.REASON)


def test_counts_that_move_are_no_standstill(lab: Lab):
    lab.work = JobWork(NOW, cores=2.0)
    lab.phase("update_actor", *(EndedPhase(number, "update_actor", 10.0) for number in range(1, 4)))
    for count in range(20):
        counts = {0: {"AllReduce": count + 1}, 1: {"AllReduce": count}}
        lab.ras = as_json(counts, host="192.168.0.2").replace('"pid": 101', '"pid": 40')
        lab.reward = REWARD.replace(":6)", f":{count})")
        assert lab.run(30).hang is None


def test_a_loop_that_never_ends_is_told_though_it_computes(lab: Lab):
    """The CPU is busy and the stacks change, but one function is in both looks, and no prompt is finished."""
    lab.work = JobWork(NOW, cores=1.0)
    lab.phase("gen", *(EndedPhase(number, "gen", 4.0) for number in range(1, 4)))
    log = lab.folder / "job-driver-one.log"
    for seconds in (30, 30, 30):
        log.write_text(
            (log.read_text() if log.exists() else "step:7 - x\n") + "pending: 0, running: 8, finished: 0, failure: 0\n"
        )
        assert lab.run(seconds).hang is None
        lab.reward = REWARD + f'Thread 302 (active): "other"\n    spin (mine/reward.py:{seconds})\n'
    lab.run(15)
    hang = lab.hang()
    assert (hang.grade, hang.blame[0].frame) == (Grade.SUSPECTED, "_wait (mine/reward.py:6)")
    assert hang.waiting == "8 of 8 prompts are still running"


def test_prompts_that_are_finished_are_movement(lab: Lab):
    lab.phase("gen", *(EndedPhase(number, "gen", 4.0) for number in range(1, 4)))
    log = lab.folder / "job-driver-one.log"
    log.write_text("step:7 - x\n")
    for finished in range(20):
        with log.open("a") as file:
            file.write(f"pending: 0, running: {99 - finished}, finished: {finished}, failure: 0\n")
        assert lab.run(30).hang is None


def test_a_judge_that_was_as_slow_before_is_not_told(lab: Lab):
    ended: tuple[EndedPhase, ...] = ()
    for number in range(1, 4):
        lab.phase("gen", *ended)
        hang = lab.run(200).hang
        assert (hang is not None) == (number == 1), number
        ended = (*ended, EndedPhase(number, "gen", 200.0))
        lab.phase("update_actor", *ended)
        lab.run(10)


def test_a_program_that_is_no_training_hangs_by_proof_only(lab: Lab):
    lab.dashboard.running[0]["entrypoint"], lab.title = "python3 sleep.py", "ray::Sleeper.sleep"
    lab.reward = 'Thread 1 (idle): "MainThread"\n    <module> (sleep.py:3)\n'
    state = lab.run(4 * 3600)
    assert (state.phase, state.hang) == ("running", None)
    context = {"error_message": "The actor is dead because it was killed by `ray.kill`."}
    dead = {"actor_id": "a", "class_name": "Queue", "state": "DEAD", "job_id": "02"}
    lab.dashboard.actors = ({**dead, "death_cause": {"x": context}},)
    lab.run(660)
    assert lab.hang().grade is Grade.PROOF


@pytest.mark.parametrize(
    "entrypoint", ["python3 score.py --model /checkpoints/verl/run/final", "python3 score.py > verl.log"]
)
def test_a_folder_that_is_called_verl_makes_no_training(lab: Lab, entrypoint: str):
    lab.dashboard.running[0]["entrypoint"], lab.title = entrypoint, entrypoint
    lab.work = JobWork(NOW, cores=2.0)
    state = lab.run(3 * 3600)
    assert (state.phase, state.hang) == ("running", None)


def test_a_training_that_never_begins_hangs(lab: Lab):
    lab.reward = ""
    assert lab.run(1000).phase == "init"
    assert lab.hang().grade is Grade.STILL


def test_a_training_that_a_script_has_started_is_known_by_its_processes(lab: Lab):
    lab.dashboard.running[0]["entrypoint"], lab.title = "bash train.sh", "ray::Sleeper.sleep"
    assert lab.run(60).phase == "running"
    lab.title = "ray::TaskRunnerV1.run"
    assert lab.run(1000).phase == "init"
    assert lab.hang().grade is not Grade.PROOF


def test_counts_of_an_earlier_rollout_say_nothing_of_the_next_phase(lab: Lab):
    """A driver that computes may be in one function at two looks."""
    (lab.folder / "job-driver-one.log").write_text("step:7 - x\npending: 0, running: 8, finished: 0, failure: 0\n")
    lab.phase("gen", EndedPhase(1, "adv", 1.0))
    lab.run(30)
    lab.work, lab.title = JobWork(NOW, cores=2.0), "ray::TaskRunnerV1.run"
    lab.phase("adv", EndedPhase(1, "adv", 1.0), EndedPhase(2, "gen", 30.0))
    for number in range(10):
        lab.reward = f'Thread 1 (active): "MainThread"\n    sum (torch/a.py:{number})\n    gae (mine/adv.py:6)\n'
        assert lab.run(30).hang is None


@pytest.mark.parametrize("phase", ["reward", "testing"])
def test_counts_of_a_rollout_that_has_ended_are_old_in_the_phases_after_it(lab: Lab, phase: str):
    """Its last line stays the last one, and says that one prompt runs; scores are given meanwhile."""
    (lab.folder / "job-driver-one.log").write_text("step:7 - x\npending: 0, running: 1, finished: 7, failure: 0\n")
    ended = [EndedPhase(number, phase, 10.0) for number in range(1, 4)]
    lab.phase("gen", *ended)
    lab.run(30)
    lab.work = JobWork(NOW, cores=2.0)
    lab.phase(phase, *ended, EndedPhase(4, "gen", 30.0))
    for number in range(10):
        lab.reward = REWARD + f'Thread 302 (active): "other"\n    score (mine/model.py:{number})\n'
        assert lab.run(30).hang is None
