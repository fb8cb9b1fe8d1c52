"""Jobs as Slurm's queue has them: one typed state, from squeue while it knows the job, then from sacct."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from cloudrl.errors import ConnectionFailed
from cloudrl.protocol.phases import Phase
from cloudrl.providers.slurm.login import CommandFailed, Login

_FIELDS = "%A|%T|%r|%S|%u|%D|%N|%j|%k"
_LINE = re.compile(r"(\d{1,12})\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|(\d{0,9})\|([^|]*)\|(.*)", re.ASCII)
_UNSET = ("", "N/A", "(null)", "None", "Unknown")


class JobState(str, enum.Enum):
    """Slurm 22.05 to 25.05, squeue(1): JOB STATE CODES. An unknown word is `UNKNOWN`."""

    PENDING = "PENDING"
    REQUEUED = "REQUEUED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    REQUEUE_FED = "REQUEUE_FED"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    RESIZING = "RESIZING"
    SIGNALING = "SIGNALING"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    # the end
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    DEADLINE = "DEADLINE"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    BOOT_FAIL = "BOOT_FAIL"
    PREEMPTED = "PREEMPTED"
    REVOKED = "REVOKED"
    UNKNOWN = "UNKNOWN"

    @classmethod
    def _missing_(cls, value: object) -> JobState:  # noqa: ARG003  enum's own name for it
        return cls.UNKNOWN

    @property
    def phase(self) -> Phase:
        """The cluster's phase, as far as Slurm knows it."""
        return _PHASES.get(self, Phase.FAILED if self in _FAILED else Phase.UNKNOWN)


_FAILED = (
    JobState.FAILED, JobState.TIMEOUT, JobState.DEADLINE, JobState.NODE_FAIL, JobState.OUT_OF_MEMORY,
    JobState.BOOT_FAIL, JobState.PREEMPTED, JobState.REVOKED,
)  # fmt: skip
_PHASES = {
    **dict.fromkeys(
        (JobState.PENDING, JobState.REQUEUED, JobState.REQUEUE_HOLD, JobState.REQUEUE_FED, JobState.SPECIAL_EXIT),
        Phase.PENDING,
    ),
    JobState.CONFIGURING: Phase.PROVISIONING,
    **dict.fromkeys(
        (JobState.RUNNING, JobState.RESIZING, JobState.SIGNALING, JobState.STAGE_OUT, JobState.STOPPED,
         JobState.SUSPENDED),
        Phase.RUNNING,
    ),
    JobState.COMPLETING: Phase.TERMINATING,
    JobState.COMPLETED: Phase.DOWN,
    JobState.CANCELLED: Phase.DOWN,
}  # fmt: skip


@dataclass(frozen=True)
class SlurmJob:
    """One look at a job.

    Attributes:
        reason: why it waits or has ended, as Slurm's word; "" where it says none.
        start: when it has started or is expected to, as Slurm writes it; "" if unknown.
        nodes: their number.
        node_list: as Slurm writes them, `node[1-2]`; "" while it waits.
        comment: of a cluster it begins with `script.COMMENT`, unless the user has one of their own.
    """

    id: int
    state: JobState
    reason: str
    start: str
    user: str
    nodes: int
    node_list: str
    name: str
    comment: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs, and Slurm will not start it again."""
        return self.state.phase.is_terminal


def jobs(login: Login) -> tuple[SlurmJob, ...]:
    """The present user's jobs in the queue, clusters or not.

    Raises:
        ConnectionFailed: Slurm's controller does not answer.
    """
    lines = login.run("squeue", "--me", "--noheader", f"--format={_FIELDS}").splitlines()
    return tuple(_from_squeue(line, login) for line in lines)


def job(login: Login, job_id: int) -> SlurmJob | None:
    """A job, also one that ended a while ago; None if it is no longer known.

    Raises:
        ConnectionFailed: Slurm's controller does not answer.
    """
    try:
        lines = login.run(
            "squeue", f"--jobs={job_id}", "--states=all", "--noheader", f"--format={_FIELDS}"
        ).splitlines()
    except CommandFailed as error:
        if "Invalid job id" not in error.message:  # squeue forgets a job minutes after its end
            raise
        lines = []
    return _from_squeue(lines[0], login) if lines else _from_accounting(login, job_id)


def _from_squeue(line: str, login: Login) -> SlurmJob:
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise _no_jobs("squeue", login)
    job_id, state, reason, start, user, nodes, node_list, rest = match.groups()
    name, _, comment = rest.rpartition("|")
    return SlurmJob(
        int(job_id),
        JobState(state),
        _known(reason),
        _known(start),
        user,
        int(nodes or 0),
        _known(node_list),
        name,
        comment,
    )


def _no_jobs(command: str, login: Login) -> ConnectionFailed:
    return ConnectionFailed(
        f"{command} on {login} prints something else than jobs",
        hint="Has the site replaced it with a program of its own?",
    )


def _from_accounting(login: Login, job_id: int) -> SlurmJob | None:
    """From sacct, which many sites have; without a database it fails, and the answer is unknown."""
    fields = "JobIDRaw,State,Reason,Start,User,NNodes,NodeList,JobName"
    try:
        lines = login.run(
            "sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job_id}", f"--format={fields}"
        ).splitlines()
    except CommandFailed:
        return None
    if not lines:
        return None
    match = _LINE.fullmatch(lines[-1])
    if match is None:
        raise _no_jobs("sacct", login)
    raw, state, reason, start, user, nodes, node_list, name = match.groups()
    word = state.split()[0] if state.split() else ""  # "CANCELLED by 1000"
    return SlurmJob(
        int(raw), JobState(word), _known(reason), _known(start), user, int(nodes or 0), _known(node_list), name
    )


def _known(word: str) -> str:
    return "" if word in _UNSET else word


def cancel(login: Login, job_id: int) -> None:
    """End a job; one that is over is left alone.

    Raises:
        ConnectionFailed: Slurm refuses, or does not answer.
    """
    try:
        login.run("scancel", str(job_id))
    except CommandFailed as error:
        if "Invalid job id" not in error.message and "already" not in error.message:
            raise ConnectionFailed(error.message) from error
