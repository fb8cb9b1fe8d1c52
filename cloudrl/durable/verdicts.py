"""Whose fault the end of an attempt was, from what Ray says of it and the end of its log. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Verdict

_SIGNATURE_CHARACTERS = 200
_EXCEPTION = re.compile(
    r"^\s*(?:\(\S+ pid=[^)]*\)\s*)?((?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt))\b.*)$", re.MULTILINE
)
_DEAD_ACTOR = re.compile(
    r"ActorDiedError: [^\n]*\n\s+class_name: [^\n]*?(?P<name>\w+)\n(?:\s+\w+: [^\n]*\n)*?\s+pid: (?P<pid>\d+)\n"
    r"(?:\s+\w+: [^\n]*\n)*?\s+ip: (?P<ip>\S+)"
)
"""Ray 2.60, exceptions.py: ActorDiedError."""
_NUMBERS = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+", re.IGNORECASE)

_OF_MACHINES = (
    # Ray 2.60, exceptions.py and src/ray: a node, its raylet or its memory
    r"[Aa]ctor died because its node has died",
    r"[Tt]ask(?:'s)? [^\n]{0,40}node [^\n]{0,40}(?:was marked dead|has died)",
    r"NodeDiedError|actor [^\n]{0,80}preempted",
    r"The node with node id[^\n]{0,200}has been marked dead",
    r"killed due to the node running low on memory|killed due to memory pressure",
    r"(?:GCS server|[Gg]cs_?[Rr]pc_?[Cc]lient|GcsClient)[^\n]{0,80}(?:unavailable|UNAVAILABLE|failed|disconnected)",
    # Ray 2.60, dashboard/modules/job/job_manager.py: the process that watches the driver
    r"[Jj]ob supervisor actor (?:died|could not be scheduled|failed)|Failed to start supervisor actor",
    # torch 2.13, ProcessGroupNCCL.cpp and gloo; NCCL 2.27, nccl.h: another rank is gone, or the link to it
    r"Watchdog caught collective operation timeout",
    r"ncclRemoteError|NCCL communicator was aborted",
    r"gloo/transport[^\n]{0,80}Connection (?:closed|reset) by peer",
    # the driver of NVIDIA's GPUs, and torch where it repeats that
    r"uncorrectable ECC error|NVRM: Xid|GPU has fallen off the bus|CUDA error: (?:unknown error|device not ready)",
)
_MACHINE = re.compile("|".join(_OF_MACHINES))
FULL_DISK = "a disk was full"
"""The reason and the signature of an attempt that found one."""
_FULL_DISK = re.compile(
    # errno 28 and 122; torch 2.13, as torch.save fails on a full disk
    r"^(?!.*/dev/shm).*(?:No space left on device|Disk quota exceeded|at inline_container.{0,80}unexpected pos)",
    re.MULTILINE,
)
_UNSURE = re.compile(
    r"worker process has died|WorkerCrashedError|ActorUnavailableError|ActorDiedError|ncclSystemError|DistNetworkError"
    r"|DistStoreError|Connection (?:closed|reset) by peer|SYSTEM_ERROR"
)
"""A process has gone, or a connection: a machine's end looks like this before it is noticed, and so does a crash."""
_SEARCHED_CHARACTERS = 16 << 10
"""Of the end of the log: before it, what a program has printed of others' errors."""


@dataclass(frozen=True)
class RayEnd:
    """How an attempt has ended.

    Attributes:
        status: Ray's: "SUCCEEDED", "FAILED" or "STOPPED".
        exit_code: of the driver, negative for a signal; None where Ray does not say.
        message: Ray's.
        log_tail: the end of its driver's log.
        has_trained: whether its log tells of a step.
        newest_step: the newest whole step on the nodes, 0 for none; None where that is not known.
    """

    status: str
    exit_code: Optional[int] = None
    message: str = ""
    log_tail: str = ""
    has_trained: bool = False
    newest_step: Optional[int] = None


@dataclass(frozen=True)
class Judgement:
    """The verdict on an attempt, with a line for a person and what two equal ends have in common."""

    verdict: Verdict
    reason: str
    signature: str = ""


def judge(end: RayEnd, job: DurableJob) -> Judgement:
    """What the newest attempt of a job has ended of."""
    if end.status == "SUCCEEDED":
        return _judge_success(end, job)
    if end.status == "STOPPED":
        return Judgement(Verdict.STOPPED, "it was stopped")
    text = f"{end.log_tail[-_SEARCHED_CHARACTERS:]}\n{end.message}"
    signature = signature_of(text)
    reason = (
        _death_of_actor(text)
        or signature
        or _last_line(end.message)
        or f"the driver ended with exit code {end.exit_code}"
    )
    if was_killed(end.exit_code):
        return Judgement(Verdict.INFRASTRUCTURE, f"its driver was killed ({_signal_text(end.exit_code)})", signature)
    full_disk = _FULL_DISK.search(text)
    of_machine = full_disk or _MACHINE.search(text)
    if of_machine is not None:
        reason, signature = (FULL_DISK, FULL_DISK) if full_disk else (of_machine[0], signature)
        return Judgement(Verdict.INFRASTRUCTURE, reason, signature)
    has_ended_by_itself = end.exit_code is not None or "runtime_env" in end.message
    before, is_unsure = _before(job), _UNSURE.search(text) is not None or not has_ended_by_itself
    if not end.has_trained and not is_unsure and (before is None or before.signature == signature):
        return Judgement(Verdict.PROGRAM, reason, signature)
    return Judgement(Verdict.UNKNOWN, reason, signature)


def _judge_success(end: RayEnd, job: DurableJob) -> Judgement:
    """An exit code of 0 may come before the last step: after a resume at the end of an epoch (verl issue 7401)."""
    if job.saves and job.total_steps and end.newest_step and end.newest_step < job.total_steps:
        return Judgement(Verdict.SHORT, f"it ended without an error at step {end.newest_step} of {job.total_steps}")
    return Judgement(Verdict.SUCCEEDED, "")


def was_killed(exit_code: Optional[int]) -> bool:
    """Whether a driver was ended by SIGKILL or SIGTERM, which it does not do to itself.

    Ray gives a signal as a negative number; a shell in between as 128 and more.
    """
    return exit_code in (-9, -15, 137, 143)


def signature_of(text: str) -> str:
    """The last line that names an exception, without what differs from attempt to attempt; "" without such a line."""
    lines = _EXCEPTION.findall(text)
    return _NUMBERS.sub("N", lines[-1].strip())[:_SIGNATURE_CHARACTERS] if lines else ""


def _death_of_actor(text: str) -> str:
    """For example `its WorkerDict (pid 42, 10.0.0.1) died`; "" where no death of an actor is the last error."""
    found = list(_DEAD_ACTOR.finditer(text))
    if not found or "ActorDiedError" not in signature_of(text):
        return ""
    return f"its {found[-1]['name']} (pid {found[-1]['pid']}, {found[-1]['ip']}) died"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_SIGNATURE_CHARACTERS] if lines else ""


def _before(job: DurableJob) -> Optional[Attempt]:
    return job.attempts[-2] if len(job.attempts) > 1 else None


def _signal_text(exit_code: Optional[int]) -> str:
    return "SIGKILL" if exit_code in (-9, 137) else "SIGTERM"
