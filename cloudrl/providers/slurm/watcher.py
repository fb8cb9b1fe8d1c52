"""The status of a cluster on Slurm: what the queue says of its job, and its head agent as soon as that answers."""

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cloudrl.errors import ClusterFailed, ConnectionFailed
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.phases import Phase
from cloudrl.providers.model import CheckpointRetention, Status, agent_fields
from cloudrl.providers.slurm import queue
from cloudrl.providers.slurm.access import JobAccess, open_access
from cloudrl.providers.slurm.login import Login
from cloudrl.providers.slurm.queue import JobState, SlurmJob
from cloudrl.providers.slurm.state import SlurmState

_OPEN_S = 45.0
"""More than a step of the job may take to start: where no step can reach us, the other way has to have its turn."""
_QUEUE_EVERY_S = 5.0
"""squeue asks the controller, which all users of a site share."""
_MEANING = {
    JobState.TIMEOUT: "the job has reached its time limit",
    JobState.NODE_FAIL: "a node of the job was lost",
    JobState.OUT_OF_MEMORY: "the job has used more memory than it asked for: slurm.mem, or memory",
    JobState.PREEMPTED: "another job has taken its nodes",
    JobState.DEADLINE: "the job could not end before its deadline",
    JobState.BOOT_FAIL: "its nodes did not come up",
    JobState.UNKNOWN: "Slurm does not know the job any more",
}
_WAITS = {
    "Priority": "jobs with a higher priority come first",
    "Resources": "no such nodes are free",
    "BeginTime": "its time to begin has not come: after a restart Slurm waits for two minutes",
    "Dependency": "another job has to end first",
    "QOSMaxJobsPerUserLimit": "as many jobs of yours run as this QOS allows",
    "PartitionTimeLimit": "its time limit is above that of the partition: slurm.time",
    "ReqNodeNotAvail": "a node that it asks for is down, drained or reserved",
}


class JobWatcher:
    """Tells the status of one cluster as often as it is asked. The way to its head is opened once.

    Args:
        state: what is known of it.
        opener: opens the way.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        state: SlurmState,
        *,
        opener: Callable[..., JobAccess] = open_access,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state, self._opener, self._clock = state, opener, clock
        self._access: JobAccess | None = None
        self._earlier: tuple[Mapping[str, Any], ...] = ()
        self._job: SlurmJob | None = None
        self._asked_at = float("-inf")
        self._unreachable_since: float | None = None

    @property
    def unreachable_s(self) -> float:
        """For how many seconds no way has led to the head, though the job runs and says where that is."""
        return 0.0 if self._unreachable_since is None else self._clock() - self._unreachable_since

    def status(self) -> Status:
        """One look.

        Raises:
            ConnectionFailed: Slurm does not answer.
        """
        if self._clock() - self._asked_at >= _QUEUE_EVERY_S:
            self._job, self._asked_at = queue.job(Login(self._state.login), self._state.job_id), self._clock()
        base = describe(self._state, self._job)
        if base.phase is not Phase.RUNNING:
            self.close()
            if not base.is_over:
                return base
            self._state.end()
            return replace(base, **_end(self._state, self._job))
        return replace(base, **self._reach())

    def close(self) -> None:
        """Close the way that was opened."""
        self._unreachable_since = None
        if self._access is not None:
            self._access.close()
            self._access = None

    def _reach(self) -> Mapping[str, Any]:
        """What its head agent says, and while that cannot be reached why."""
        try:
            if self._access is None:
                self._access = self._open()
                self._earlier = tuple(self._state.run_folder.starts())
            status = self._access.status()
        except (ConnectionFailed, ClusterFailed) as error:
            if self._access is not None:  # it may have ended
                self._asked_at = float("-inf")
            return {"reason": error.message}
        url = self._access.connection.ray_url if self._access.is_kept_open else None
        own = {
            "dashboard_url": url, "previous_attempts": self._earlier,
            "price_per_hour": status.budget.price_per_hour, "cost": status.budget.cost,  # as far as it was declared
        }  # fmt: skip
        return {**agent_fields(status), **own}

    def _open(self) -> JobAccess:
        since, self._unreachable_since = self._unreachable_since, None
        self._state.run_folder.head()  # until that is there, nothing is to be waited for
        self._unreachable_since = self._clock() if since is None else since
        access = self._opener(self._state, timeout_s=_OPEN_S)
        self._unreachable_since = None
        return access


def describe(state: SlurmState, job: SlurmJob | None) -> Status:
    """What Slurm alone knows of a cluster."""
    phase = Phase.DOWN if job is None else job.state.phase
    reason = "" if job is None or phase is not Phase.PENDING else _why_waiting(job)
    place = f"in {state.checkpoint_dir}, which all nodes share" if state.checkpoint_dir else "on the shared file system"
    follow = f"tail -n +1 -f {shlex.quote(state.log)}"
    return Status(
        ClusterFacts(state.name, "", "slurm", job.nodes if job else 0, checkpoint_dir=state.checkpoint_dir),
        phase,
        reason=reason,
        started_at=state.started_at,
        retention=CheckpointRetention(destroyed=False, location=place),
        teardown_summary="its nodes go back to Slurm; checkpoints stay on the shared file system",
        logs_command=f"ssh {state.login} {shlex.quote(follow)}" if state.login else follow,
        state_dir=str(state.folder),
    )


def _why_waiting(job: SlurmJob) -> str:
    word = job.reason.partition(",")[0].strip("() ")
    reason = f"{word}: {_WAITS[word]}" if word in _WAITS else word
    return f"{reason}; expected to start {job.start}" if job.start else reason


def _end(state: SlurmState, job: SlurmJob | None) -> Mapping[str, Any]:
    """Phase and reason of a cluster that is over: the agent's own words, or else Slurm's."""
    outcome, refusal, last_line = state.run_folder.ending(state.log)
    attempts = tuple(state.run_folder.starts())
    slurm = JobState.UNKNOWN if job is None else job.state
    if slurm in (JobState.CANCELLED, JobState.COMPLETED) or (job is None and outcome is None and not refusal):
        ended_itself = outcome is not None and outcome.phase is Phase.DOWN
        return {"phase": Phase.DOWN, "reason": outcome.reason if outcome and ended_itself else "",
                "previous_attempts": attempts}  # fmt: skip
    reason = outcome.reason if outcome is not None and outcome.phase is Phase.FAILED else refusal
    words = _MEANING.get(slurm, f"Slurm says {slurm.value}")
    reason = reason or (words if slurm in _MEANING or not last_line else f"{words}; its last line: {last_line}")
    return {"phase": Phase.FAILED, "reason": reason, "previous_attempts": attempts}
