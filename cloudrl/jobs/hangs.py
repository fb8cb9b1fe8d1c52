"""A training that stands still, in sentences: for `watch`, `status` and `why`. Pure functions."""

from cloudrl.protocol.job_phases import Blame, Grade, JobState, phase_text
from cloudrl.protocol.progress import Notice
from cloudrl.units import dollars_text, duration_text

_SEEN = {
    Grade.PROOF: "the job cannot go on",
    Grade.STILL: "the job hangs",
    Grade.LATE: "the job may hang",
    Grade.SUSPECTED: "the job may hang",
}
NEXT_COMMANDS = """\
Stacks of all ranks: cloudrl why {job} --stacks
Stop the job: cloudrl jobs stop {job}"""


def hang_notice(state: JobState | None, now: float, price_per_hour: float | None = None) -> Notice | None:
    """What holds up a job, since when, what it costs, and what to do; None while it goes on.

    Args:
        state: of the job; None without one.
        now: seconds since the epoch.
        price_per_hour: of the cluster in US dollars; None if unknown.
    """
    if state is None or state.hang is None:
        return None
    hang, price = state.hang, f", at {dollars_text(price_per_hour)}/h" if price_per_hour else ""
    step = f"step {state.step}, " if state.step is not None else ""
    still = f"; nothing has moved for {duration_text(hang.still_s)}" if hang.still_s >= 1 else ""
    late = f", more than {duration_text(hang.limit_s)}" if hang.grade is Grade.LATE else ""
    text = f"{_SEEN[hang.grade]}: {step}{phase_text(state, now)}{late}{still}{price}"
    details = [*map(blame_text, hang.blame), hang.waiting]
    text += "".join(f"; {detail}" for detail in details if detail)
    return Notice(text, f"{hang.remedy}\n{NEXT_COMMANDS.format(job=state.submission_id)}")


def blame_text(blame: Blame) -> str:
    """One that the others wait for: `WorkerDict.save (pid 305) on rank 1 (10.0.0.7) is stopped, at save (a.py:3)`."""
    pid = f" (pid {blame.pid})" if blame.pid else ""
    host = f" ({blame.host})" if blame.host else ""
    node = f" on rank {blame.rank}{host}" if blame.rank is not None else ""
    method = f".{blame.method}" if blame.method else ""
    frame = f", at {blame.frame}" if blame.frame else ""
    reason, _, more = blame.reason.partition("; ")
    return f"{blame.actor}{method}{pid}{node} {reason}{frame}" + (f"; {more}" if more else "")
