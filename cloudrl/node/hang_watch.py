"""Rank 0 watches the training that runs: its phase from the heartbeats, and on suspicion the stacks of all ranks."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from cloudrl.errors import CloudrlError
from cloudrl.foreign import parse_json, read_file
from cloudrl.hangs import blame as blaming
from cloudrl.hangs import ras, rollout, stacks
from cloudrl.hangs.driver_log import DriverLog
from cloudrl.hangs.limits import PhaseTimes
from cloudrl.hangs.movement import GpuWork, moves
from cloudrl.hangs.remedies import remedy
from cloudrl.hangs.watch import PROOF_S, STARVED_PERCENT, UNINTERRUPTIBLE_S, HangWatch, Sample, Verdict
from cloudrl.node import ras_client
from cloudrl.node.background import repeat, within
from cloudrl.node.ray import Dashboard
from cloudrl.node.ray_proofs import ASK_STILL_S, RayProofs
from cloudrl.private_files import write_file
from cloudrl.protocol.failures import ApiError
from cloudrl.protocol.job_phases import OTHER_PROGRAM, Blame, Grade, Hang, JobPhase, JobState
from cloudrl.protocol.job_work import LookedAt
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.side_by_side import side_by_side
from cloudrl.saves.names import OURS, file_name

EVERY_S = 5.0
_JOBS_EVERY_S = 15.0
_LOOK_EVERY_S, _LOOKS, _MORE_EVERY_S = 30.0, 5, 300.0
"""Looks at the stacks while a suspicion lasts: so many half a minute apart, then each five minutes."""
_HALTED_LOOK_S = 25.0
FILE = "hang-{number}.log"
_FILES, _KEPT_LOOKS = 8, 2
_SAVE_EVERY_S, _RAS_CHARACTERS = 300.0, 64 << 10
_VERL = re.compile(r"\bverl[./](?:examples|experimental|recipe|trainer)\b")
"""A program of verl's in a command line. Folders and files of anybody may be called verl, too."""
_VERLS_ACTORS = ("ray::TaskRunner", "ray::WorkerDict", "ray::AgentLoop", "ray::RewardLoop")
_VOLUME_S = 5.0
"""For which a volume is waited for: a dead share would hold up the look that is to find it."""


@dataclass
class Episode:
    """A suspicion, until something moves again.

    Attributes:
        found: what the last look said.
        agreed: whom the last two looks blame alike.
        is_equal: whether no stack changed between them.
        equal_since: since when no look has found another stack.
        lags: what NCCL's ranks have launched, as long as that differs.
        lags_s: for how long a rank of the job lags behind the others, and no count has changed.
    """

    looked_at: float = float("-inf")
    looks: int = 0
    found: blaming.Finding = field(default_factory=blaming.Finding)
    agreed: Tuple[Blame, ...] = ()
    proven: Tuple[Blame, ...] = ()
    before: Tuple[object, ...] = ()
    is_equal: bool = False
    equal_since: float = 0.0
    lags: ras.Standstill = field(default_factory=ras.Standstill)
    lags_s: float = 0.0
    file: str = ""
    told_at: float = 0.0


class HangMonitor:
    """Looks again and again, in one thread; `state` is what the status shows.

    Args:
        reports: of all nodes, the newest.
        dashboard: Ray's.
        look: at the processes of one rank.
        logs: where Ray keeps those of drivers; None before it is up.
        folder: for the stacks of an episode; the logs in it are archived.
        checkpoints: where times of phases are kept for later attempts of a run.
        ask_ras: NCCL's monitor on this machine, given its address or "": what differs between ranks, and its words.
        clock: seconds that never run backwards.
        now: seconds since the epoch.
    """

    def __init__(  # noqa: PLR0913  what it looks at, and two clocks
        self,
        reports: Callable[[], Sequence[NodeReport]],
        dashboard: Dashboard,
        look: Callable[[NodeReport], Tuple[LookedAt, ...]],
        logs: Callable[[], Optional[Path]],
        *,
        folder: Path,
        checkpoints: Path,
        ask_ras: Callable[[str], Tuple[Tuple[ras.Mismatch, ...], str]] = ras_client.ask,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._reports, self._dashboard, self._look, self._logs = reports, dashboard, look, logs
        self._folder, self._times_folder = folder, checkpoints / OURS / "phase-times"
        self._ask_ras, self._clock, self._now = ask_ras, clock, now
        self.state: Optional[JobState] = None
        self._job: Dict[str, Any] = {}
        self._asked_at = self._saved_at = float("-inf")
        self._watch, self._episode, self._log = HangWatch(PhaseTimes()), Episode(), DriverLog()
        self._rollout = rollout.Progress()
        self._since: Tuple[str, float] = ("", 0.0)
        self._idle_watts: Dict[Tuple[int, int], float] = {}
        self._files = 0
        self._is_computing = self._is_training = self._has_stepped = False
        self._ray = self._proofs_of("")
        self._is_volume_free = threading.Lock()

    def start(self) -> None:
        """Look until the process ends."""
        repeat(self.tick, EVERY_S)

    def tick(self) -> None:
        """One look at the heartbeats, and at more where it is time."""
        self._follow_job()
        if not self._job:
            self.state = None
            return
        reports = self._reports()
        sample = self._sample(reports)
        self._ray.note_step(self._log.step)
        verdict = self._watch.add(sample, exact_phase=self._episode.found.phase)
        halted = _halted(reports)
        may_wait = verdict.still_s >= ASK_STILL_S or verdict.is_suspicious
        waiting = self._ray.waiting() if may_wait and not sample.is_paused else self._ray.forget_waiting()
        is_halted = any(seconds > _HALTED_LOOK_S for _, seconds in halted)
        may_hang = not self._has_stepped  # the heartbeats may be older than the step's end
        if (verdict.is_suspicious or is_halted or waiting) and may_hang and not sample.is_paused:
            self._look_if_due(reports, sample)
        else:
            self._episode = Episode()
        grade, limit_s = self._grade(verdict, halted, waiting) if may_hang else (None, verdict.limit_s)
        self.state = self._state(sample, verdict, grade, limit_s)
        self._keep_times()

    # -- the job and its phase ------------------------------------------------------------------------------

    def _follow_job(self) -> None:
        """The newest job that runs; a cluster has one training at a time."""
        if self._clock() - self._asked_at < _JOBS_EVERY_S:
            return
        self._asked_at = self._clock()
        jobs = self._dashboard.jobs()
        if jobs is None:
            return
        running = [job for job in jobs if job.get("status") == "RUNNING" and job.get("submission_id")]
        job: Dict[str, Any] = max(running, key=lambda job: job.get("start_time") or 0, default={})
        if job.get("job_id") != self._job.get("job_id"):
            self._ray = self._proofs_of(str(job.get("job_id") or ""))
        if job.get("submission_id") != self._job.get("submission_id"):
            self._episode, self._log, self._since = Episode(), DriverLog(), ("", 0.0)
            self._job = job
            self._watch = HangWatch(self._kept_times() if job else PhaseTimes())
            self._is_training = False
        self._job = job

    def pace(self) -> Tuple[float, float]:
        """Seconds until the step that runs has ended, and those of a save, as measured of this run; 0 if unknown."""
        watch = self._watch
        return watch.left_in_step_s(self._clock()), watch.times.usual_s(str(JobPhase.SAVE_CHECKPOINT)) or 0.0

    def _proofs_of(self, job_id: str) -> RayProofs:
        return RayProofs(self._dashboard, job_id, self._clock, self._now)

    def _sample(self, reports: Sequence[NodeReport]) -> Sample:
        works = [report.work for report in reports if report.work is not None]
        notes = [work.note for work in works if work.note is not None]
        notes = [note for note in notes if note.job_id in ("", self._job.get("job_id"))]
        note = max(notes, key=lambda note: note.since, default=None)
        now, ended = self._now(), note.ended if note is not None else ()
        if note is not None:
            phase, since = note.phase, min(note.since, now)
        else:
            phase, since = self._phase_of_titles({method for work in works for method in work.methods}, now)
        cores, rate = sum(work.cores for work in works), sum(work.bytes_per_s for work in works)
        gpus = self._gpus(reports)
        is_moving, self._is_computing = moves(cores, rate, gpus), moves(0.0, rate, gpus)
        self._log.begin(phase, since)
        step = self._log.step
        if (logs := self._logs()) is not None:
            self._log.read(logs / f"job-driver-{self._job['submission_id']}.log")
        self._has_stepped = self._log.step != step
        at = self._clock()
        is_moving = self._rollout.add(self._log.unfinished_in(phase), at) or is_moving or self._has_stepped
        self._watch.note_step(self._log.step, at)
        is_starved = any(work.cpu_wait_percent > STARVED_PERCENT for work in works)
        return Sample(at, now, phase, since, is_moving, ended, any(work.is_paused for work in works), is_starved)

    def _phase_of_titles(self, methods: "set[str]", now: float) -> Tuple[str, float]:
        """Where no timer is noted: before the first of them, or where the job has a PYTHONPATH of its own."""
        phase = next((str(phase) for phase in JobPhase for method in methods if method.endswith(str(phase))), "")
        is_training = methods or self._is_training or _VERL.search(str(self._job.get("entrypoint")))
        begins = str(JobPhase.INIT) if is_training else OTHER_PROGRAM
        phase = phase or (begins if self._log.step is None else str(JobPhase.STEP))
        if phase != self._since[0]:
            began = (self._job.get("start_time") or 0) / 1000 if not self._since[0] else now
            self._since = phase, began or now
        return self._since

    def _gpus(self, reports: Sequence[NodeReport]) -> List[GpuWork]:
        gpus = []
        for report in reports:
            for gpu in report.usage.gpus if report.usage is not None else ():
                place = report.rank, gpu.index
                if gpu.power_w is not None:
                    self._idle_watts[place] = min(gpu.power_w, self._idle_watts.get(place, gpu.power_w))
                gpus.append(GpuWork(gpu.utilization_percent, gpu.power_w, self._idle_watts.get(place)))
        return gpus

    # -- looks at the stacks --------------------------------------------------------------------------------

    def _look_if_due(self, reports: Sequence[NodeReport], sample: Sample) -> None:
        episode = self._episode
        pause_s = _LOOK_EVERY_S if episode.looks < _LOOKS else _MORE_EVERY_S
        if sample.at - episode.looked_at < pause_s:
            return
        looks = side_by_side(self._look_at, reports)
        processes = [process for looked in looks for process in looked]
        finding, ras_words = self._with_ras(
            blaming.find(processes, sample.phase), processes, [report.ip for report in reports], sample.at
        )
        self._is_training = self._is_training or any(_is_of_verl(process.title) for process in processes)
        proven, before = self._ray.dead(), blaming.fingerprint(processes)
        episode.is_equal = bool(before) and before == episode.before
        if not episode.is_equal:
            episode.equal_since = sample.at
        blame = (*proven, *finding.blame)
        has_lagged = episode.lags_s >= PROOF_S  # by NCCL's counts at two looks, which agree
        lagging = [found for found in finding.blame if has_lagged and found.reason.startswith(ras.REASON)]
        episode.agreed = blaming.same((*episode.proven, *episode.found.blame, *lagging), blame)
        episode.proven = blaming.same(episode.proven, proven) or proven
        episode.looked_at, episode.looks = sample.at, episode.looks + 1
        episode.found, episode.before = finding, before
        if episode.looks <= _KEPT_LOOKS:
            self._write(reports, looks, ras_words)
        self._watch.was_kept_waiting(self._clock(), self._now())

    def _with_ras(
        self, finding: blaming.Finding, processes: Sequence[blaming.Process], hosts: Sequence[str], at: float
    ) -> Tuple[blaming.Finding, str]:
        """The finding with the ranks that lag behind by NCCL's own monitor, and what that said."""
        episode = self._episode
        mismatches, words = self._ask_ras(ras_client.address_of(self._job))
        lasting = [(mismatch, seconds) for mismatch, seconds in episode.lags.add(mismatches, at) if seconds > 0]
        own = [(mismatch, seconds) for mismatch, seconds in lasting if ras.blame([mismatch], processes, hosts)]
        blame = ras.blame((mismatch for mismatch, _ in own), processes, hosts)
        episode.lags_s = max((seconds for _, seconds in own), default=0.0)
        lagging = {(found.rank, found.pid) for found in blame}
        others = [found for found in finding.blame if (found.rank, found.pid) not in lagging]
        return replace(finding, blame=(*blame, *others)), words

    def _look_at(self, report: NodeReport) -> Tuple[blaming.Process, ...]:
        """Processes of a rank with their stacks; none where it does not answer in time."""
        looked: Tuple[LookedAt, ...] = ()
        with contextlib.suppress(CloudrlError, ApiError, OSError, http.client.HTTPException, ValueError):
            looked = self._look(report)
        return tuple(
            blaming.Process(
                report.rank, each.pid, each.title, each.state, report.ip, each.wchan, stacks.parse(each.stacks),
                each.peers, each.stacks,
            )
            for each in looked
        )  # fmt: skip

    def _write(self, reports: Sequence[NodeReport], looks: Sequence[Sequence[blaming.Process]], ras_words: str) -> None:
        """The stacks of a look and NCCL's words, in a file of the episode that the archive keeps."""
        if not self._episode.file:
            self._files += 1
            self._episode.file = FILE.format(number=(self._files - 1) % _FILES + 1)
        lines = [
            f"job {self._job['submission_id']}, {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(self._now()))} UTC"
        ]
        for report, processes in zip(reports, looks):  # noqa: B905  Python 3.9
            for process in processes:
                lines += [f"\n=== rank {report.rank} ({report.ip}) pid {process.pid} {process.title} [{process.state}]"]
                lines += [process.text or "no stacks: the process could not be read"]
        lines += [f"\n=== NCCL RAS on rank 0\n{ras_words[:_RAS_CHARACTERS]}"] if ras_words else []
        with contextlib.suppress(OSError):
            write_file(self._folder / self._episode.file, "\n".join(lines) + "\n")

    # -- what it reports ---------------------------------------------------------------------------------------

    def _grade(
        self, verdict: Verdict, halted: Sequence[Tuple[Blame, float]], waiting: Tuple[Blame, ...]
    ) -> Tuple[Optional[Grade], float]:
        """How sure a hang is, and the limit that was exceeded."""
        episode = self._episode
        if waiting:
            episode.agreed = waiting
            return Grade.PROOF, PROOF_S
        for blame, seconds in halted:
            limit_s = PROOF_S if blame.reason.startswith("is stopped") else UNINTERRUPTIBLE_S
            if seconds >= limit_s:
                if not any((found.rank, found.pid) == (blame.rank, blame.pid) for found in episode.agreed):
                    episode.agreed = (blame, *episode.agreed)
                return Grade.PROOF, limit_s
        if blaming.same(episode.proven, episode.agreed):
            return Grade.PROOF, PROOF_S
        # a wait for other GPUs keeps the CPU busy, in one stack
        waits = not self._is_computing and episode.looked_at - episode.equal_since >= PROOF_S
        if episode.lags_s >= PROOF_S and (waits or verdict.still_s >= PROOF_S):
            return Grade.PROOF, PROOF_S
        if verdict.grade is not None:
            return verdict.grade, verdict.limit_s
        stands = episode.is_equal and ((waits and verdict.is_long) or (verdict.still_s > 0 and verdict.is_unusual))
        # a loop keeps the CPU busy in changing stacks: then the prompts tell
        prompts_still_s = self._rollout.still_s(self._clock())
        stands = stands if prompts_still_s is None else prompts_still_s >= PROOF_S
        is_suspected = bool(episode.agreed) and stands and verdict.is_suspicious and not verdict.is_unjudged
        return (Grade.SUSPECTED if is_suspected else None), verdict.limit_s

    def _state(self, sample: Sample, verdict: Verdict, grade: Optional[Grade], limit_s: float) -> JobState:
        episode, times = self._episode, self._watch.times
        phase = sample.phase
        if phase in (JobPhase.INIT, JobPhase.STEP) and episode.found.phase is not None:
            phase = episode.found.phase
        state = JobState(
            str(self._job["submission_id"]), phase, sample.since, times.usual_s(phase), self._log.next_step
        )
        if grade is None:
            return state
        episode.told_at = episode.told_at or self._now()
        waiting = episode.found.waiting or self._log.waiting_for(phase)
        hang = Hang(
            grade, episode.told_at, round(verdict.still_s, 1), round(limit_s, 1), episode.agreed, waiting,
            remedy(phase, episode.agreed), episode.file,
        )  # fmt: skip
        return replace(state, hang=hang)

    # -- what later attempts learn from ---------------------------------------------------------------------

    def _times_file(self) -> Path:
        name = (self._job.get("metadata") or {}).get("job_name") or self._job["submission_id"]
        return self._times_folder / f"{file_name(str(name))}.json"

    def _kept_times(self) -> PhaseTimes:
        found = []
        file = self._times_file()

        def read() -> None:
            with contextlib.suppress(OSError, ValueError, OverflowError):
                found.append(PhaseTimes.from_json(parse_json(read_file(file))))

        self._on_volume(read)
        return found[0] if found else PhaseTimes()

    def _keep_times(self) -> None:
        if self._clock() - self._saved_at < _SAVE_EVERY_S or not self._watch.times.seconds:
            return
        self._saved_at = self._clock()
        file, text = self._times_file(), json.dumps(self._watch.times.to_json())

        def write() -> None:
            with contextlib.suppress(OSError):  # whoever needs the volume says what is wrong with it
                self._times_folder.mkdir(parents=True, exist_ok=True)
                write_file(file, text)

        self._on_volume(write)

    def _on_volume(self, work: Callable[[], None]) -> None:
        """Done once it returns, unless the volume takes too long, or has not answered the time before."""
        if self._is_volume_free.acquire(blocking=False):

            def do() -> None:
                try:
                    work()
                finally:
                    self._is_volume_free.release()

            within(_VOLUME_S, do)


def _halted(reports: Sequence[NodeReport]) -> List[Tuple[Blame, float]]:
    """Processes that cannot move, with the seconds for which that was seen."""
    found = []
    for report in reports:
        for halted in report.work.halted if report.work is not None else ():
            process = blaming.Process(report.rank, halted.pid, halted.title, halted.state, report.ip, halted.wchan)
            found += [(blame, halted.seconds) for blame in blaming.find([process], "").blame]
    return found


def _is_of_verl(title: str) -> bool:
    return title.startswith(_VERLS_ACTORS) or _VERL.search(title) is not None
