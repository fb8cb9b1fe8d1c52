"""A cluster in memory on which the real supervisor runs: machines, disks, Ray, and what goes wrong with them.

A seed makes the jobs and a list of faults; the clock is the simulation's. Faults stop two thirds through, so that every
job must come to an end. `violations` holds what the product must never do.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from durable.disks import Agents, Disks, Machine
from durable.mirror import Mirror
from durable.taken_back import TakenBack

from cloudrl.durable.attempt_plan import newest_whole, plan_attempt
from cloudrl.durable.progress import Scored
from cloudrl.durable.queue import PlanFailed, Planned, Remembered
from cloudrl.durable.request import JOB_KEY
from cloudrl.durable.verdicts import RayEnd
from cloudrl.errors import CheckpointError, CloudrlError
from cloudrl.node.machinery import Machinery
from cloudrl.node.mirrors import Mirrors
from cloudrl.node.old_steps import OldSteps
from cloudrl.node.step_copies import StepCopies
from cloudrl.node.supervisor import Supervisor
from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Result
from cloudrl.protocol.failures import ApiError
from cloudrl.protocol.job_phases import Blame, Grade, Hang, JobState
from cloudrl.protocol.job_work import SaveNote
from cloudrl.saves.copies import is_safe
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.keeping import score_steps
from cloudrl.saves.lineage import without_abandoned
from cloudrl.saves.resume import Ranks

TICK_S, HOURS = 20.0, 8
DELAY_TICKS = 60
STEP_TICKS = 1, 6
FAULTS = (
    "cluster_lost", "node_replaced", "driver_killed", "ray_silent", "answers_lost", "submit_500", "disk_full",
    "clock_jump", "hang", "raw_job", "stop", "bit_flip", "out_of_memory", "node_back", "flip_on_the_way", "half_save",
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
        keep: whole steps that stay; 0 for all.
        ends_early_at: ends with exit code 0 there; None for never.
        keep_every, keep_best: what stays besides; 0 and "" for nothing.
    """

    steps: int
    save_every: int
    step_ticks: int
    fails_at: int | None = None
    ends_early_at: int | None = None
    keep: int = 0
    keep_every: int = 0
    keep_best: str = ""


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
    answered: int = 0
    saved_at: int = -1


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
        self.disks = Disks(count, is_shared=self.is_shared)
        self.agents = Agents(self.disks, self)
        self.has_copies = count > 1 and not self.is_shared
        self.has_mirror = seed % 8 == 3  # those that have found a fault go on as they did
        self.keeps_some, self.seed = seed % 8 == 7 or seed % 16 == 11, seed
        self.mirror = Mirror(self.disks, self)
        self.mirrored_at: dict[str, tuple[int, int]] = {}
        self.scripts, self.arrivals = self._jobs()
        self.tick_s, self.taken_back = TICK_S, TakenBack(self)
        self.started_at: dict[str, int] = {}
        made = self._with_notices(seed, self._faults())
        self.faults = made if faults is None else faults
        self.tick, self.skew_s, self.epoch = 0, 0.0, 0
        self.down_until = self.silent_until = self.lossy_until = self.full_until = self.refuses_until = -1
        self.ray: dict[str, RayJob] = {}
        self.acknowledged: dict[str, DurableJob] = {}
        self.to_stop: set[str] = set()
        self.stopped: dict[str, int] = {}
        self.violations: list[str] = []
        self.trace: list[str] = []
        self.attempts_of: dict[str, int] = {}
        self.newer: dict[str, Any] = {}
        self.scored: dict[str, DurableJob] = {}
        self.unrecorded: dict[str, int] = {}
        self.flipped_at = self.flips_until = self.disturbed_at = -1
        self.planned_at: dict[str, int] = {}
        self.saved_at: dict[str, tuple[int, int]] = {}
        self.copied: Any = None
        self.copying: tuple[str, ...] = ()
        self.is_missing = self.is_mirroring = False
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
            self.taken_back.pass_time()
            for kind in faults.get(self.tick, ()):
                self._break(kind)
            if self.supervisor is None and self.tick >= self.down_until:
                self._start_cluster()
            if self.supervisor is None:
                continue
            for job_id in self.arrivals.get(self.tick, ()):
                self._submit(job_id)
            self._ask_to_stop()
            self._train()
            self.supervisor.look()
            self.taken_back.look()
            self._mirror()
            self._check()
            if self.tick % 50 == 0 and self._is_over(max(faults, default=0)):
                break
        self._check_end()
        return self.violations

    @property
    def nodes(self) -> list[Machine]:
        return self.disks.machines

    def _is_over(self, last_fault: int) -> bool:
        """Whether nothing is going to happen any more."""
        assert self.supervisor is not None
        later = max(self.down_until, self.silent_until, self.lossy_until, self.full_until, last_fault, 0) + 60
        is_idle = not self.supervisor.has_work and not self.is_missing and not self.is_mirroring
        return is_idle and self.tick > later and all(tick < self.tick for tick in self.arrivals)

    def _jobs(self) -> tuple[dict[str, Script], dict[int, list[str]]]:
        scripts: dict[str, Script] = {}
        arrivals: dict[int, list[str]] = {}
        for number in range(self.random.randint(1, 3)):
            steps, fate = self.random.randint(4, 18), self.random.random()
            fails = self.random.randint(1, steps) if fate < 0.2 else None
            short = self.random.randint(1, steps) if 0.2 < fate < 0.25 else None
            name = f"job{number}"
            scripts[name] = Script(
                steps,
                self.random.randint(1, 5),
                self.random.randint(*STEP_TICKS),
                fails,
                short,
                self.random.randint(0, 2),
            )
            arrivals.setdefault(self.random.randint(1, 200), []).append(name)
            if self.keeps_some:
                every, best = self.seed // 16 % 4, ("", "m", "min:m")[self.seed // 64 % 3]
                scripts[name] = replace(scripts[name], keep=1 + number % 2, keep_every=every, keep_best=best)
        return scripts, arrivals

    def value(self, step: int) -> float:
        """Of the metric by which the best step stays; each second step has one."""
        return float((step * 37 + self.seed) % 11)

    def _faults(self) -> list[tuple[int, str]]:
        count = self.random.choice((0, 1, 2, 4, 8))
        last = self.ticks * 2 // 5
        faults = [(self.random.randint(1, last), self.random.choice(FAULTS)) for _ in range(count)]
        # the loss of a cluster right after another fault is what finds a record that is on one machine alone
        if self.random.random() < 0.3:  # a machine comes back with a part of a step that has been trained again since
            at = self.random.randint(1, last - 200)
            times = (at, at + 31, at + 31 + self.random.randint(40, 100))
            faults += [*zip(times, ("half_save", "node_replaced", "node_back"), strict=True)]
        faults += [(at + self.random.randint(1, 9), "cluster_lost") for at, _ in faults if self.random.random() < 0.3]
        if self.has_mirror and self.random.random() < 0.6:
            faults += [(self.random.randint(1, last), "all_lost") for _ in range(self.random.randint(1, 2))]
        return sorted(faults)

    def _with_notices(self, seed: int, faults: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """In some worlds a cloud takes machines back, in half of these nothing else goes wrong."""
        if seed % 11 not in (0, 4, 8):  # those that have found a fault go on as they did
            return faults
        comes = sorted(self.arrivals)  # jobs are short
        times = (self.random.choice(comes) + self.random.randint(1, 80) for _ in range(self.random.randint(1, 3)))
        notices = [(at, "notice") for at in times]
        return sorted([*notices, *(faults if self.random.random() < 0.5 else [])])

    def _break(self, kind: str) -> None:
        self._note(f"fault {kind}")
        soon, late = self.tick + self.random.randint(1, 12), self.tick + self.random.randint(1, 60)
        self.disturbed_at = self.tick
        if kind in ("all_lost", "cluster_lost", "node_replaced", "node_back", "half_save"):
            if kind == "half_save":
                self._save_half()
            self._lose_cluster(kind)
        elif kind in ("driver_killed", "out_of_memory", "hang"):
            self._harm_jobs(kind)
        elif kind in ("bit_flip", "stop", "raw_job"):
            getattr(self, f"_{kind}")()
        elif kind == "flip_on_the_way":
            self.flips_until = late
        elif kind == "notice":
            self.taken_back.give()
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
        runs = [run for run in sorted(node.runs) if node.runs[run]]
        if runs:
            run = self.random.choice(runs)
            step = max(node.runs[run])
            name = self.random.choice(sorted(node.runs[run][step]))
            node.put(run, step, name, node.runs[run][step][name]._replace(damage="cut", is_good=False))

    def is_flipped_on_the_way(self) -> bool:
        """Whether a byte of a copy arrives as another one."""
        return self.tick < self.flips_until and self.random.random() < 0.3

    def _save_half(self) -> None:
        """The machines are lost while some ranks have saved and others have not."""
        for job in self.ray.values():
            if job.status == "RUNNING" and job.job_id in self.scripts:
                nodes = self.random.sample(range(self.disks.count), self.random.randint(0, self.disks.count - 1))
                self.disks.save(job.job_id, job.step + 1, job.submission_id, self.now(), nodes)

    def _stop(self) -> None:
        if self.acknowledged and self.supervisor is not None:
            self.to_stop.add(self.random.choice(sorted(self.acknowledged)))
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        """The user asks again until the end is recorded."""
        assert self.supervisor is not None
        for job_id in sorted(self.to_stop - self.stopped.keys()):
            with contextlib.suppress(OSError):
                self.supervisor.stop_job(job_id)
                self.stopped[job_id] = self.tick

    def lose_machine(self, node: int) -> None:
        """A machine goes, and the cluster with it."""
        self._note(f"node {node} is taken back")
        if not self.is_shared:
            self.disks.replace(node)
        self.disturbed_at = self.tick
        self._lose_cluster("cluster_lost")

    def _lose_cluster(self, kind: str) -> None:
        if kind == "all_lost":
            self.disks.replace_all()
        if not self.is_shared and (kind == "node_replaced" or (kind == "node_back" and self.disks.gone)):
            back = self.random.randrange(len(self.disks.gone)) if kind == "node_back" else None
            self.disks.replace(self.random.randrange(len(self.nodes)), back)
        for name in self.ray:
            self.harm[name] = self.tick
        self.ray, self.supervisor, self.scored = {}, None, {}
        self.down_until = self.tick + self.random.randint(2, 30)

    def _start_cluster(self) -> None:
        self.epoch += 1
        self.random.shuffle(self.nodes)
        for machine in self.nodes:
            machine.orders.clear()
            machine.errors.clear()
        self.copies = StepCopies(
            lambda: self.disks.reports, self.agents.of, lambda: self._inventory(self.copying),
            is_urgent=self.taken_back.is_urgent, say=self._note, clock=self.clock,
        )  # fmt: skip
        self.mirror.forget_uploads()
        self.mirrors = Mirrors(
            lambda: self.disks.reports, self.agents.of, lambda _: cast("Any", self.mirror),
            is_urgent=self.taken_back.is_urgent, say=self._note, now=self.now, clock=self.clock,
        )  # fmt: skip
        self.old_steps = OldSteps(lambda: self.disks.reports, self.agents.of, say=self._note)
        self.supervisor = Supervisor(
            f"epoch{self.epoch}", "run", self._machinery(), say=self._note, now=self.now, clock=self.clock
        )
        mirrored = self._records_in_mirror() if self.has_mirror else []
        self.supervisor.restore([*mirrored, *(job for node in self.nodes for job in node.journal.values())])
        lost = set(self.acknowledged) - {job.job_id for job in self.supervisor.jobs}
        if lost and (self.is_shared or len(self.nodes) > 1 or self.has_mirror) and not self._may_forget():
            self.violate(f"S5 the journal has forgotten {sorted(lost)}")
        for job_id in lost:
            del self.acknowledged[job_id]

    def _records_in_mirror(self) -> list[DurableJob]:
        """It is asked until it answers."""
        while True:
            try:
                return self.mirrors.jobs.records("mirror")
            except OSError:
                continue

    def _submit(self, job_id: str) -> None:
        assert self.supervisor is not None
        request = {"entrypoint": "python -m train", "submission_id": job_id, "metadata": {"job_name": job_id}}
        job = DurableJob(
            job_id, job_id, "", request, 0.0, world_size=self.disks.count, total_steps=self.scripts[job_id].steps,
            keep=self.scripts[job_id].keep, keep_every=self.scripts[job_id].keep_every,
            keep_best=self.scripts[job_id].keep_best, mirror="mirror" if self.has_mirror else "",
        )  # fmt: skip
        try:
            if self.has_mirror:
                self.supervisor.note(Remembered(self.mirrors.jobs.take(job)))
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
        is_due = job.step % script.save_every == 0 or job.step == script.steps or self.taken_back.is_wanted(job)
        if is_due and self.tick >= self.full_until:
            self.taken_back.note_save(job)
            job.saved_at = self.tick
            self.disks.save(job.job_id, job.step, job.submission_id, self.now(), range(self.disks.count))
            job.told = job.step
            self.saved_at.setdefault(job.job_id, (job.step, self.tick))
            self.mirrored_at.setdefault(job.job_id, (job.step, self.tick))
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
            notices=self.taken_back.notices,
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
            self.violate(f"S5 {name} was sent before it was recorded")
            return "400: ?"
        self._check_start(name, job_id, attempt)
        self.started_at[name] = self.tick
        self.ray[name] = RayJob(name, job_id, step=attempt.from_step, from_step=attempt.from_step)
        self.attempts_of[job_id] = self.attempts_of.get(job_id, 0) + 1
        self._note(f"ray runs {name} from {attempt.from_step}")
        return None if self.tick < self.lossy_until else ""

    def _end_job(self, name: str) -> None:
        if name in self.ray and self.ray[name].status == "RUNNING":
            job = self.ray[name]
            if job.job_id not in self.to_stop and name not in self.harm:
                self.violate(f"M2 {name} is stopped, and nothing was wrong with it")
            job.asked_to_stop = True

    def _record(self, job: DurableJob) -> int:
        if self.tick < self.full_until:
            raise OSError(28, "No space left on device")
        copies = 0
        self.mirrors.jobs.note(job)
        for number, node in enumerate(self.nodes):
            if number and not self.is_shared and self.tick < self.lossy_until and self.random.random() < 0.7:
                continue  # this node does not hear of it
            node.journal[job.job_id] = job
            copies += 1
        return copies

    def _plan(self, job: DurableJob) -> Planned | PlanFailed:
        if self.tick < self.lossy_until and self.random.random() < 0.5:
            return PlanFailed(job.job_id, "node 1 says nothing", may_pass=True)
        inventory, addresses = self._inventory((job.run,)), self.disks.addresses
        try:
            inventory = self.mirrors.with_saves(job, inventory, self.copies.unreadable)
        except CloudrlError as error:
            return PlanFailed(job.job_id, error.message, may_pass=True)
        getting = {0: addresses[0]} if self.is_shared else addresses
        is_brought = self.has_copies or self.has_mirror
        if is_brought and (waits_for := self.copies.bring(job, inventory, getting)):
            return PlanFailed(job.job_id, waits_for, may_pass=True, pause_s=5.0)
        ranks = Ranks(job.world_size, len(addresses), addresses)
        try:
            plan = plan_attempt(job, inventory, ranks, checkpoint_dir="/c", cluster="c")
        except CheckpointError as error:
            if self.disks.steps_with(job.run, 2) and self._is_calm():
                self.violate(f"M1 {job.job_id} does not go on, and a step is safe: {error.message}")
            return PlanFailed(job.job_id, error.message)
        except CloudrlError as error:
            return PlanFailed(job.job_id, error.message, may_pass=True)
        self.newer[job.job_id], self.planned_at[job.job_id] = plan.newer, self.tick
        return plan.planned

    def _inventory(self, runs: tuple[str, ...]) -> Inventory:
        """What the nodes say that answer."""
        silent = None
        if self.disks.count > 1 and self.tick < self.lossy_until and self.random.random() < 0.5:
            silent = self.random.randrange(1, self.disks.count)
        return self.disks.inventory(runs, silent)

    def _prepare(self, job: DurableJob) -> None:
        if self.tick < self.full_until:
            raise OSError(28, "No space left on device")
        for rank, path in self.newer.pop(job.job_id, ()):
            self.nodes[rank].remove(job.run, int(path.rpartition("_")[2]))

    def _mirror(self) -> None:
        """Copies go on, and others are ordered."""
        self.agents.work()
        self.mirror.work()
        assert self.supervisor is not None
        jobs = [job for job in self.supervisor.jobs if job.last is not None and self._is_of_now(job)]
        runs = tuple(job.run for job in jobs)
        state = [self.disks.state(run) for run in runs], [job.submission_id for job in jobs]
        self.mirrors.jobs.flush()
        is_missing = self.is_missing or self.is_mirroring
        if not jobs or (state == self.copied and not (is_missing and self.tick % 3 == 0)):
            return
        self.copied = state
        self.copying = runs
        if self.has_copies:
            self._check_safety(jobs)
            self.is_missing = self.copies.mirror(jobs, self.disks.addresses, {})
        if self.has_mirror:
            inventory = self._inventory(runs)
            self.is_mirroring = self.mirrors.upload([self._scored(job, inventory) for job in jobs], inventory)
        begun = {run: (self.copies.begun.get(run), self.mirrors.begun.get(run)) for run in runs}
        inventory = self._inventory(runs)
        scored = [self._scored(job, inventory) for job in jobs]
        self.old_steps.clear(scored, inventory, self.disks.addresses, {}, begun)

    def _scored(self, job: DurableJob, inventory: Inventory) -> DurableJob:
        """As `cloudrl.node.scores` reads it in a log, which is gone after a loss."""
        trained = self.ray.get(job.submission_id)
        if not job.keep_best or trained is None or inventory.silent:
            return job
        valid = without_abandoned(inventory, job)
        steps = {checkpoint.step for checkpoint in valid.checkpoints if checkpoint.run == job.run}
        values = {step: self.value(step) for step in range(trained.from_step + 1, trained.step + 1) if step % 2 == 0}
        scores = score_steps(job.scores, steps, values, trained.step)
        assert self.supervisor is not None
        self.supervisor.note(Scored(job.submission_id, scores))
        scored = replace(job, scores=scores)
        if scores != job.scores and self._is_calm() and "disk_full" not in self._kinds:
            self.unrecorded[job.run] = self.unrecorded.get(job.run, 0) + 1
            if self.unrecorded[job.run] > 20:
                self.violate(f"S5 scores of {job.run} are not recorded: {scores}")
        else:
            self.unrecorded[job.run] = 0
        self.scored[job.run] = scored
        return scored

    def kept(self, run: str, steps: Iterable[int]) -> set[int]:
        """Steps of these that must stay for good, by what is recorded or is about to be."""
        job = self.nodes[0].journal.get(run)
        if job is None or not self.keeps_some:
            return set()
        newer = self.scored.get(run, job)
        job = newer if newer.submission_id == job.submission_id else job
        due = {step for step in steps if job.keep_every and step % job.keep_every == 0}
        scores = {score.step: score.value for score in job.scores if score.step in steps}
        best = (min if job.keep_best.startswith("min:") else max)(scores.values(), default=0.0)
        return due | {max((step for step, value in scores.items() if value == best), default=0)} - {0}

    def _is_of_now(self, job: DurableJob) -> bool:
        return job.outcome is None or self.now() - job.outcome.at < 3600

    def _end(self, job: DurableJob, row: Mapping[str, Any]) -> RayEnd:
        ended = self.ray[str(row["submission_id"])]
        newest = newest_whole(self.disks.inventory((job.run,)), job.run)
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
        replaced = kinds.count("node_replaced") + kinds.count("notice")
        if self.has_mirror:
            return "answers_lost" in kinds
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
            self.violate(f"S1 {name} starts beside {others[0].submission_id}")
        self.taken_back.check_start(name)
        self._check_step(name, job_id, attempt)
        if any(step > attempt.from_step for node in self.nodes for step in node.runs.get(job_id, {})):
            self.violate(f"S2 {name} would save over steps of an earlier attempt")
        if job_id in self.stopped and self.tick > self.stopped[job_id] + 1 and not self._may_forget():
            self.violate(f"S7 {name} starts after it was stopped")

    def _check_step(self, name: str, job_id: str, attempt: Attempt) -> None:
        """What the ranks load is of one attempt, whole, and as new as it can be."""
        job, step = self.nodes[0].journal[job_id], attempt.from_step
        if step and self.flipped_at < self.planned_at[job_id]:
            data, *shards = self.disks.loaded(job_id, step)
            found = {file.attempt for file in (data or shards[0], *shards) if file is not None}
            if None in shards or len(found) > 1 or not all(file.is_good for file in shards if file is not None):
                self.violate(f"S2 {name} goes on from step {step}: {data} {shards}")
            elif not self._is_valid(job, step, found.pop()) and "clock_jump" not in self._kinds:
                self.violate(f"S2 {name} goes on from step {step} of an attempt that was left behind")
        calm = self._is_calm()
        least = 2 if self.has_copies else 1
        safe = [
            newer
            for newer, attempts in self.disks.steps_with(job_id, least).items()
            if newer > step and any(self._is_valid(job, newer, one) for one in attempts)
        ]
        if self.has_mirror:
            in_mirror = self.mirror.steps(job_id).items()
            safe += [
                newer
                for newer, ids in in_mirror
                if newer > step and any(self._is_valid(job, newer, one) for one in ids)
            ]
        if safe and calm and "clock_jump" not in self._kinds:
            self.violate(f"M1 {name} goes on from step {step}, and step {max(safe)} was safe")

    @property
    def _kinds(self) -> list[str]:
        return [kind for _, kind in self.faults]

    def _is_calm(self) -> bool:
        """Whether nothing has been in the way of copies for a while."""
        return max(self.lossy_until, self.full_until, self.flips_until) + 60 < self.tick

    def _is_valid(self, job: DurableJob, step: int, submission_id: str) -> bool:
        """Whether every later attempt, but for the one that starts now, has begun at this step or after it."""
        ids = [attempt.submission_id for attempt in job.attempts]
        later = job.attempts[ids.index(submission_id) + 1 : -1] if submission_id in ids else ()
        return all(step <= attempt.from_step for attempt in later)

    def _check_safety(self, jobs: list[DurableJob]) -> None:
        inventory = self.disks.inventory(tuple(job.run for job in jobs))
        for job in jobs:
            steps: dict[int, list[Any]] = {}
            for checkpoint in without_abandoned(inventory, job).checkpoints:
                if checkpoint.run == job.run:
                    steps.setdefault(checkpoint.step, []).append(checkpoint)
            for step, roles in sorted(steps.items())[-3:]:
                if is_safe(roles) and not any(
                    self.disks.copies(job.run, step, one) > 1 for one in self.disks.attempts_of(job.run, step)
                ):
                    self.violate(f"S4 step {step} of {job.run} is not on two machines")

    def _check_delay(self) -> None:
        """Without disturbance a save, or a later one, is soon on two machines."""
        for job_id, (step, at) in list(self.saved_at.items()):
            last = max(self.disturbed_at, self.lossy_until, self.full_until, self.flips_until, self.down_until)
            if last + 30 > at:
                del self.saved_at[job_id]
            elif self.tick - at > DELAY_TICKS:
                del self.saved_at[job_id]
                if max(self.disks.steps_with(job_id, 2), default=0) < step:
                    self.violate(f"L2 step {step} of {job_id} is still on one machine alone")

    def _check_mirror_delay(self) -> None:
        """Likewise in the mirror."""
        for job_id, (step, at) in list(self.mirrored_at.items()):
            last = max(self.disturbed_at, self.lossy_until, self.full_until, self.flips_until, self.down_until)
            if last + 30 > at:
                del self.mirrored_at[job_id]
            elif self.tick - at > DELAY_TICKS:
                del self.mirrored_at[job_id]
                if max(self.mirror.steps(job_id), default=0) < step:
                    self.violate(f"L2 step {step} of {job_id} is still not in the mirror")

    def _check(self) -> None:
        if self.has_mirror:
            self._check_mirror_delay()
        if self.has_copies:
            self._check_delay()
        self._check_jobs()

    def _check_jobs(self) -> None:
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
            self.violate(f"S7 the end of {job.job_id} was taken back")
        told = [attempt.saved_step for attempt in before.attempts if attempt not in job.attempts]
        if told and len(job.attempts) == len(before.attempts) and job.attempts[-1].saved_step < told[-1]:
            self.violate(f"S5 {job.job_id} has forgotten that step {told[-1]} was saved")
        if len(job.attempts) < len(before.attempts):
            self.violate(f"S5 attempts of {job.job_id} went down")

    def _check_end(self) -> None:
        for job_id, job in self.acknowledged.items():
            script = self.scripts[job_id]
            self.taken_back.check_reasons(job)
            if job.outcome is None:
                self.violate(f"L1 {job_id} has no end: {job.waits_for or job.attempts[-1:]}")
                continue
            if job.outcome.result is Result.FAILED and "says nothing" in job.outcome.reason:
                self.violate(f"L1 {job_id} has failed because a node was silent")
            kept = self.kept(job_id, self.disks.steps_with(job_id, 1))
            if self.has_copies and not self.faults and kept - set(self.disks.steps_with(job_id, 2)):
                self.violate(f"K3 steps {sorted(kept)} of {job_id} stay for good, and are not all on two machines")
            missing = kept - set(self.mirror.steps(job_id))
            if self.has_mirror and missing and not self.faults:
                self.violate(f"K2 steps {sorted(missing)} of {job_id} stay for good, and the mirror has not got them")
            newest = max(self.disks.steps_with(job_id, 1), default=0)
            is_flipped = any(
                kind in ("bit_flip", "node_replaced", "disk_full", "node_back", "all_lost", "notice")
                for _, kind in self.faults
            )
            is_whole = newest == script.steps or script.ends_early_at is not None or is_flipped
            if job.outcome.result is Result.SUCCEEDED and not is_whole:
                self.violate(f"S8 {job_id} succeeded at step {newest} of {script.steps}")
            if script.fails_at is not None and not self.faults and self.attempts_of.get(job_id, 0) > 2:
                self.violate(f"M3 {job_id} was tried {self.attempts_of[job_id]} times")
            is_healthy = script.fails_at is None and script.ends_early_at is None and job_id not in self.to_stop
            is_mirrored = self.has_mirror and self._kinds == ["all_lost"]
            if is_healthy and is_mirrored and job.outcome.result is not Result.SUCCEEDED:
                self.violate(f"L1 {job_id} ended as {job.outcome.result}, and a mirror has its steps")
            if is_healthy and len(self.faults) < 2 and not is_flipped and job.outcome.result is not Result.SUCCEEDED:
                self.violate(f"L1 {job_id} ended as {job.outcome.result}: {job.outcome.reason}")

    def violate(self, text: str) -> None:
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
