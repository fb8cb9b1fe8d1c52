"""A cluster in memory on which the real supervisor runs: machines, disks, Ray, and what goes wrong with them.

A seed makes the jobs and a list of faults; the clock is the simulation's. Faults stop two thirds through, so that every
job must come to an end. `violations` holds what the product must never do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudrl.durable.queue import PlanFailed, Planned
from cloudrl.durable.request import JOB_KEY
from cloudrl.durable.verdicts import RayEnd
from cloudrl.node.supervisor import Machinery, Supervisor
from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Result
from cloudrl.protocol.failures import ApiError
from cloudrl.protocol.job_phases import Blame, Grade, Hang, JobState
from cloudrl.protocol.job_work import SaveNote

TICK_S, HOURS = 20.0, 8
FAULTS = (
    "cluster_lost", "node_replaced", "driver_killed", "ray_silent", "answers_lost", "submit_500", "disk_full",
    "clock_jump", "hang", "raw_job", "stop", "bit_flip", "out_of_memory",
)  # fmt: skip

_UNTIL = {
    "ray_silent": "silent_until", "answers_lost": "lossy_until", "disk_full": "full_until",
    "submit_500": "refuses_until",
}  # fmt: skip


@dataclass(frozen=True)
class Script:
    """What a job of the simulation does.

    Attributes:
        steps: in all.
        save_every: steps.
        step_ticks: ticks of the clock for a step.
        fails_at: the step at which it always fails; None for never.
        ends_early_at: ends with exit code 0 there; None for never.
    """

    steps: int
    save_every: int
    step_ticks: int
    fails_at: int | None = None
    ends_early_at: int | None = None


@dataclass
class RayJob:
    """A submission in Ray."""

    submission_id: str
    job_id: str
    status: str = "RUNNING"
    step: int = 0
    from_step: int = 0
    ticks: int = 0
    told: int = 0
    exit_code: int | None = None
    message: str = ""
    is_hung: bool = False
    asked_to_stop: bool = False


@dataclass
class Node:
    """The disk of a machine: saves as run -> step -> the attempt that wrote them, and the journal."""

    saves: dict[str, dict[int, str]] = field(default_factory=dict)
    damaged: set[tuple[str, int]] = field(default_factory=set)
    journal: dict[str, DurableJob] = field(default_factory=dict)


class World:
    """A cluster of `nodes` machines; `run` plays it to its end.

    Args:
        seed: of everything.
        faults: (tick, kind) in place of those that the seed makes, to shrink a failure.
    """

    def __init__(self, seed: int, faults: list[tuple[int, str]] | None = None) -> None:
        self.random = random.Random(seed)
        self.ticks = int(HOURS * 3600 / TICK_S)
        self.is_shared = self.random.random() < 0.4
        count = self.random.choice((1, 2, 3))
        self.nodes = [Node() for _ in range(count)]
        if self.is_shared:
            self.nodes = [self.nodes[0]] * count
        self.scripts, self.arrivals = self._jobs()
        made = self._faults()
        self.faults = made if faults is None else faults
        self.tick, self.skew_s, self.epoch = 0, 0.0, 0
        self.down_until = self.silent_until = self.lossy_until = self.full_until = self.refuses_until = -1
        self.ray: dict[str, RayJob] = {}
        self.acknowledged: dict[str, DurableJob] = {}
        self.stopped: dict[str, int] = {}
        self.violations: list[str] = []
        self.trace: list[str] = []
        self.attempts_of: dict[str, int] = {}
        self.flipped_at = -1
        self.harm: dict[str, int] = {}
        self.supervisor: Supervisor | None = None
        self._start_cluster()

    # -- what happens ---------------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """Play it; returns what must never happen, and did."""
        faults: dict[int, list[str]] = {}
        for at, kind in self.faults:
            faults.setdefault(at, []).append(kind)
        for tick in range(self.ticks):
            self.tick = tick
            for kind in faults.get(self.tick, ()):
                self._break(kind)
            if self.supervisor is None and self.tick >= self.down_until:
                self._start_cluster()
            if self.supervisor is None:
                continue
            for job_id in self.arrivals.get(self.tick, ()):
                self._submit(job_id)
            self._train()
            self.supervisor.look()
            self._check()
        self._check_end()
        return self.violations

    def _jobs(self) -> tuple[dict[str, Script], dict[int, list[str]]]:
        scripts: dict[str, Script] = {}
        arrivals: dict[int, list[str]] = {}
        for number in range(self.random.randint(1, 4)):
            steps, fate = self.random.randint(5, 30), self.random.random()
            fails = self.random.randint(1, steps) if fate < 0.2 else None
            short = self.random.randint(1, steps) if 0.2 < fate < 0.25 else None
            name = f"job{number}"
            scripts[name] = Script(steps, self.random.randint(1, 5), self.random.randint(1, 6), fails, short)
            arrivals.setdefault(self.random.randint(1, 200), []).append(name)
        return scripts, arrivals

    def _faults(self) -> list[tuple[int, str]]:
        count = self.random.choice((0, 1, 2, 4, 8))
        last = self.ticks * 2 // 5
        faults = [(self.random.randint(1, last), self.random.choice(FAULTS)) for _ in range(count)]
        # the loss of a cluster right after another fault is what finds a record that is on one machine alone
        faults += [(at + self.random.randint(1, 9), "cluster_lost") for at, _ in faults if self.random.random() < 0.3]
        return sorted(faults)

    def _break(self, kind: str) -> None:
        self._note(f"fault {kind}")
        soon, late = self.tick + self.random.randint(1, 12), self.tick + self.random.randint(1, 60)
        if kind in ("cluster_lost", "node_replaced"):
            self._lose_cluster(replaced=kind == "node_replaced")
        elif kind in ("driver_killed", "out_of_memory", "hang"):
            self._harm_jobs(kind)
        elif kind in ("bit_flip", "stop", "raw_job"):
            getattr(self, f"_{kind}")()
        elif kind == "clock_jump":
            self.skew_s += self.random.choice((-7200.0, -60.0, 60.0, 7200.0))
        else:
            until = {"ray_silent": late, "answers_lost": late, "disk_full": late, "submit_500": soon}[kind]
            setattr(self, _UNTIL[kind], until)

    def _harm_jobs(self, kind: str) -> None:
        for job in self.ray.values():
            if job.status != "RUNNING" or job.job_id not in self.scripts:
                continue
            self.harm[job.submission_id] = self.tick
            if kind == "hang":
                job.is_hung = True
            else:
                job.status, job.exit_code = "FAILED", -9 if kind == "driver_killed" else 1
                job.message = "" if kind == "driver_killed" else "Task was killed due to the node running low on memory"

    def _raw_job(self) -> None:
        self.ray[f"raw{self.tick}"] = RayJob(f"raw{self.tick}", "raw")

    def _bit_flip(self) -> None:
        self.flipped_at = self.tick
        node = self.random.choice(self.nodes)
        runs = [run for run in sorted(node.saves) if node.saves[run]]
        if runs:
            run = self.random.choice(runs)
            node.damaged.add((run, max(node.saves[run])))

    def _stop(self) -> None:
        if self.acknowledged and self.supervisor is not None:
            job_id = self.random.choice(sorted(self.acknowledged))
            self.stopped.setdefault(job_id, self.tick)
            self.supervisor.stop_job(job_id)

    def _lose_cluster(self, *, replaced: bool) -> None:
        if replaced and not self.is_shared:
            self.nodes[self.random.randrange(len(self.nodes))] = Node()
        for name in self.ray:
            self.harm[name] = self.tick
        self.ray, self.supervisor = {}, None
        self.down_until = self.tick + self.random.randint(2, 30)

    def _start_cluster(self) -> None:
        self.epoch += 1
        self.random.shuffle(self.nodes)
        self.supervisor = Supervisor(
            f"epoch{self.epoch}", "run", self._machinery(), say=self._note, now=self.now, clock=self.clock
        )
        self.supervisor.restore([job for node in self.nodes for job in node.journal.values()])
        lost = set(self.acknowledged) - {job.job_id for job in self.supervisor.jobs}
        if lost and (self.is_shared or len(self.nodes) > 1) and not self._may_forget():
            self._violate(f"S5 the journal has forgotten {sorted(lost)}")
        for job_id in lost:
            del self.acknowledged[job_id]

    def _submit(self, job_id: str) -> None:
        assert self.supervisor is not None
        request = {"entrypoint": "python -m train", "submission_id": job_id, "metadata": {"job_name": job_id}}
        job = DurableJob(job_id, job_id, "", request, 0.0, total_steps=self.scripts[job_id].steps)
        try:
            self.acknowledged[job_id] = self.supervisor.accept(job)
        except (OSError, ApiError):
            later = self.tick + 30
            self.arrivals.setdefault(later, []).append(job_id)

    def _train(self) -> None:
        for job in self.ray.values():
            if job.status != "RUNNING":
                continue
            if job.asked_to_stop:
                job.status = "FAILED" if self.random.random() < 0.3 else "STOPPED"
            elif job.job_id == "raw":
                job.ticks += 1
                job.status = "SUCCEEDED" if job.ticks > 30 else "RUNNING"
            elif not job.is_hung:
                self._train_one(job, self.scripts[job.job_id])

    def _train_one(self, job: RayJob, script: Script) -> None:
        job.ticks += 1
        if job.ticks % script.step_ticks:
            return
        if script.fails_at == job.step + 1:
            job.status, job.exit_code, job.message = "FAILED", 1, "ValueError: the reward is no number"
            return
        job.step += 1
        if (job.step % script.save_every == 0 or job.step == script.steps) and self.tick >= self.full_until:
            for node in self.nodes:
                node.saves.setdefault(job.job_id, {})[job.step] = job.submission_id
                node.damaged.discard((job.job_id, job.step))
            job.told = job.step
        if job.step in (script.steps, script.ends_early_at):
            job.status, job.exit_code = "SUCCEEDED", 0

    # -- what the supervisor calls --------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since the epoch, by a clock that somebody may set."""
        return 1e9 + self.tick * TICK_S + self.skew_s

    def clock(self) -> float:
        """Seconds that never run backwards."""
        return self.tick * TICK_S

    def _machinery(self) -> Machinery:
        return Machinery(
            jobs=self._jobs_of_ray, submit=self._take, stop=self._end_job, record=self._record, plan=self._plan,
            prepare=self._prepare, end=self._end, hang=self._hang, saved=self._saved, copies=min(2, len(self.nodes)),
        )  # fmt: skip

    def _jobs_of_ray(self) -> list[dict[str, Any]] | None:
        if self.tick < self.silent_until:
            return None
        return [
            {"submission_id": job.submission_id, "status": job.status, "metadata": {JOB_KEY: job.job_id}}
            for job in self.ray.values()
        ]

    def _take(self, request: Mapping[str, Any]) -> str | None:
        name = str(request["submission_id"])
        if self.tick < self.silent_until:
            return None
        if self.tick < self.refuses_until:
            return "500: No available agent to submit job"
        if name in self.ray:
            return f"400: the id {name} is taken"
        job_id = str(request["metadata"]["cloudrl_job"])
        attempt = self._recorded_attempt(job_id, name)
        if attempt is None:
            self._violate(f"S5 {name} was sent before it was recorded")
            return "400: ?"
        self._check_start(name, job_id, attempt)
        self.ray[name] = RayJob(name, job_id, step=attempt.from_step, from_step=attempt.from_step)
        self.attempts_of[job_id] = self.attempts_of.get(job_id, 0) + 1
        self._note(f"ray runs {name} from {attempt.from_step}")
        return None if self.tick < self.lossy_until else ""

    def _end_job(self, name: str) -> None:
        if name in self.ray and self.ray[name].status == "RUNNING":
            job = self.ray[name]
            if job.job_id not in self.stopped and name not in self.harm:
                self._violate(f"M2 {name} is stopped, and nothing was wrong with it")
            job.asked_to_stop = True

    def _record(self, job: DurableJob) -> int:
        if self.tick < self.full_until:
            raise OSError(28, "No space left on device")
        copies = 0
        for number, node in enumerate(self.nodes):
            if number and not self.is_shared and self.tick < self.lossy_until and self.random.random() < 0.7:
                continue  # this node does not hear of it
            node.journal[job.job_id] = job
            copies += 1
        return copies

    def _plan(self, job: DurableJob) -> Planned | PlanFailed:
        if self.tick < self.lossy_until and self.random.random() < 0.5:
            return PlanFailed(job.job_id, "node 1 says nothing", may_pass=True)
        steps = self._whole_steps(job.run)
        if steps:
            return Planned(job.job_id, max(steps), {"trainer.resume_from_path": str(max(steps))})
        if any(node.saves.get(job.run) for node in self.nodes):
            return PlanFailed(job.job_id, "no step is whole")
        return Planned(job.job_id, 0)

    def _whole_steps(self, run: str) -> set[int]:
        return {
            step
            for step in set().union(*(node.saves.get(run, {}) for node in self.nodes))
            if len({node.saves.get(run, {}).get(step) for node in self.nodes}) == 1
            and not any((run, step) in node.damaged for node in self.nodes)
        }

    def _prepare(self, job: DurableJob) -> None:
        if self.tick < self.full_until:
            raise OSError(28, "No space left on device")
        attempt = job.attempts[-1]
        for node in self.nodes:
            saves = node.saves.get(job.run, {})
            for step in [step for step in saves if step > attempt.from_step]:
                del saves[step]

    def _end(self, job: DurableJob, row: Mapping[str, Any]) -> RayEnd:
        ended = self.ray[str(row["submission_id"])]
        newest = max(self._whole_steps(job.run), default=0)
        trained = ended.step > ended.from_step
        return RayEnd(ended.status, ended.exit_code, ended.message, has_trained=trained, newest_step=newest)

    def _saved(self, name: str) -> SaveNote | None:
        """What a trainer has told; nodes look for it now and then."""
        job = self.ray.get(name)
        if job is None or not job.told or self.tick % 3:
            return None
        return SaveNote(name, job.told, f"/c/{job.job_id}/global_step_{job.told}", self.now())

    def _hang(self) -> JobState | None:
        for job in self.ray.values():
            if job.is_hung and job.status == "RUNNING":
                told_at = 1e9 + self.harm[job.submission_id] * TICK_S + self.skew_s
                blame = (Blame(1, "WorkerDict", "is stopped (state T)"),)
                return JobState(job.submission_id, "gen", 0.0, hang=Hang(Grade.PROOF, told_at, blame=blame))
        return None

    # -- what must hold -------------------------------------------------------------------------------------

    def _may_forget(self) -> bool:
        """Whether machines with all copies of a record may be gone: too many, or one while another was not heard."""
        kinds = [kind for _, kind in self.faults]
        replaced = kinds.count("node_replaced")
        return not self.is_shared and (
            replaced >= min(2, len(self.nodes)) or (replaced and "answers_lost" in kinds) > 0
        )

    def _recorded_attempt(self, job_id: str, name: str) -> Attempt | None:
        job = self.nodes[0].journal.get(job_id)
        last = job.last if job is not None else None
        return last if last is not None and last.submission_id == name else None

    def _check_start(self, name: str, job_id: str, attempt: Attempt) -> None:
        others = [job for job in self.ray.values() if job.status == "RUNNING"]
        if others:
            self._violate(f"S1 {name} starts beside {others[0].submission_id}")
        if attempt.from_step and attempt.from_step not in self._whole_steps(job_id) and self.flipped_at != self.tick:
            self._violate(f"S2 {name} goes on from step {attempt.from_step}, which is not whole")
        if any(step > attempt.from_step for node in self.nodes for step in node.saves.get(job_id, {})):
            self._violate(f"S2 {name} would save over steps of an earlier attempt")
        is_kept = not self._may_forget() and not any(kind == "disk_full" for _, kind in self.faults)
        if job_id in self.stopped and self.tick > self.stopped[job_id] + 1 and is_kept:
            self._violate(f"S7 {name} starts after it was stopped")

    def _check(self) -> None:
        assert self.supervisor is not None
        for job in self.supervisor.jobs:
            if self.nodes[0].journal.get(job.job_id) != job:
                continue  # not recorded yet, so nothing was done about it
            before = self.acknowledged.get(job.job_id)
            if before is not None and not self._may_forget():
                self._compare(before, job)
            if job.job_id in self.acknowledged:
                self.acknowledged[job.job_id] = job

    def _compare(self, before: DurableJob, job: DurableJob) -> None:
        if before.outcome is not None and job.outcome != before.outcome:
            self._violate(f"S7 the end of {job.job_id} was taken back")
        told = [attempt.saved_step for attempt in before.attempts if attempt not in job.attempts]
        if told and len(job.attempts) == len(before.attempts) and job.attempts[-1].saved_step < told[-1]:
            self._violate(f"S5 {job.job_id} has forgotten that step {told[-1]} was saved")
        if len(job.attempts) < len(before.attempts):
            self._violate(f"S5 attempts of {job.job_id} went down")

    def _check_end(self) -> None:
        for job_id, job in self.acknowledged.items():
            script = self.scripts[job_id]
            if job.outcome is None:
                self._violate(f"L1 {job_id} has no end: {job.waits_for or job.attempts[-1:]}")
                continue
            newest = max(self._whole_steps(job_id), default=0)
            is_flipped = any(kind in ("bit_flip", "node_replaced", "disk_full") for _, kind in self.faults)
            is_whole = newest == script.steps or script.ends_early_at is not None or is_flipped
            if job.outcome.result is Result.SUCCEEDED and not is_whole:
                self._violate(f"S8 {job_id} succeeded at step {newest} of {script.steps}")
            if script.fails_at is not None and not self.faults and self.attempts_of.get(job_id, 0) > 2:
                self._violate(f"M3 {job_id} was tried {self.attempts_of[job_id]} times")
            is_healthy = script.fails_at is None and script.ends_early_at is None and job_id not in self.stopped
            if is_healthy and len(self.faults) < 2 and not is_flipped and job.outcome.result is not Result.SUCCEEDED:
                self._violate(f"L1 {job_id} ended as {job.outcome.result}: {job.outcome.reason}")

    def _violate(self, text: str) -> None:
        self.violations.append(f"tick {self.tick}: {text}")
        self._note(text)

    def _note(self, text: str) -> None:
        self.trace.append(f"{self.tick:5} {text}")


def shrunk(seed: int) -> tuple[World, list[str]]:
    """The world of a failing seed with as few of its faults as still make it fail."""
    world = World(seed)
    violations = world.run()
    faults = list(world.faults)
    for fault in list(faults):
        fewer = [other for other in faults if other is not fault]
        candidate = World(seed, fewer)
        if found := candidate.run():
            faults, world, violations = fewer, candidate, found
    return world, violations
