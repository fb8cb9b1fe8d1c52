"""Why runs and their attempts ended, in the agents' own words or dstack's, and what to do about it.

dstack's reasons are those of 0.22.5 (core/models/runs.py).
"""

import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cloudrl.errors import CloudrlError, ClusterFailed, InputError
from cloudrl.protocol.outcome import FAILED, STARTED, from_output
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.progress import Notice
from cloudrl.protocol.ranks import ranks_text
from cloudrl.providers.dstack.runs import Attempt, RunState
from cloudrl.providers.dstack.server import Server

_NO_CONTAINER = "creating_container_error"
_NO_CAPACITY = "failed_to_start_due_to_no_capacity"
_EXITED = "container_exited_with_error"
_MEANING = {
    _NO_CONTAINER: "the image cannot be pulled or started",
    "log_quota_exceeded": (
        "dstack ends a run whose node prints too much: 50 MB in an hour, unless its server says otherwise"
    ),
    "max_duration_exceeded": "it has run for its max_duration",
    "terminated_due_to_utilization_policy": (
        "one of its GPUs did less than its utilization_policy asks for, and dstack does not start it again"
    ),
    _NO_CAPACITY: "there is no such machine to be had now",
    "ports_binding_failed": "one of the run's ports is taken on that machine",
}
_ENOUGH = {_NO_CONTAINER: 2, _EXITED: 3, "executor_error": 3, "waiting_runner_limit_exceeded": 3}
"""How often a node may end like this before its agent has said a word; then the next attempt will end so, too."""
_PULL_TIMED_OUT = "context deadline exceeded"
"""Docker's words when dstack's 20 minutes for a pull are over (runner/internal/shim/docker.go)."""
_TIMED_OUT_PULLS = 3
"""So many pulls that take too long are an hour, for which a registry or a network is rarely slow by chance."""
_ENDLESS = 5
"""So many equal failures are no bad luck, where no client waits that ends the run."""
_HINTS = (
    (
        ("read-only file system",),
        (
            "Container-Optimized OS, for one, lets write only below /home, /var and /mnt/disks. "
            "Take such a folder: --volume /var/lib/cloudrl/checkpoints:/checkpoints"
        ),
    ),
    (  # the shim's, when it cannot make or mount a folder (runner/internal/shim/volumes.go), before any pull
        ("instance mount director", "prepareInstanceMountPoints", "prepareVolumes", "mount disk"),
        (
            "The host cannot give the container one of its volumes. Your command with this prints them: --dry-run\n"
            "Take another folder or network volume: --volume /FOLDER:/checkpoints"
        ),
    ),
    (  # Docker's, when NVIDIA's container toolkit refuses a container; then when it is not there or does not work
        ("unsatisfied condition: cuda",),
        (
            "The driver of this machine is older than the CUDA of the image: nvidia-smi there shows the CUDA that it "
            "can run. Update it, or take an image with an older CUDA: --image IMAGE"
        ),
    ),
    (
        ("nvidia-container-cli", "could not select device driver"),
        (
            "The host cannot give its GPUs to a container. Look there: nvidia-smi\n"
            "Then whether Docker has NVIDIA's container toolkit: docker run --rm --gpus all ubuntu nvidia-smi"
        ),
    ),
)
"""Words of a reason, and what to do; the first row that fits counts."""
_READ_ATTEMPTS = 5
"""Of so many attempts, the latest, the output is read for the agents' own words; of older ones dstack's are shown."""
_LIMITS = ("max_duration_exceeded", "terminated_due_to_utilization_policy")
"""dstack's reasons for a run that it has ended at a limit of the user's: its node is "terminated", the run failed."""
_CONSEQUENCES = ("terminated_by_server", "terminated_by_user")
"""dstack's reasons for a node that it has ended since another one did."""
_PAGE = 1000
"""The most lines that the server gives at once (server/schemas/logs.py: PollLogsRequest)."""


def describe_failure(attempt: Attempt) -> str:
    """Why an attempt ended: dstack's words, and what they mean where that is not plain."""
    meaning = _MEANING.get(attempt.code)
    reason = attempt.reason or "failed"
    return f"{meaning} ({reason})" if meaning is not None else reason


def unrecoverable_error(server: Server, run: RunState) -> ClusterFailed | None:
    """Why waiting for a run is in vain although dstack goes on trying; None when it is not.

    Without an agent nothing counts failures and ends the run, and dstack's `retry.duration` does not bound errors: it
    counts from the latest attempt that had a machine (server/background/pipeline_tasks/runs/active.py).
    """
    if (failing := _failing_start(server, run, _ENOUGH)) is None:
        return None
    text, hint = failing
    return ClusterFailed(f"cluster {run.name!r} is stopped: {text}", hint=hint)


def endless_restarts(server: Server, run: RunState) -> Notice | None:
    """That a run which no client waits for fails again and again before its agent starts; None while it does not."""
    failing = None if run.is_over else _failing_start(server, run, dict.fromkeys(_ENOUGH, _ENDLESS))
    if failing is None:
        return None
    text, hint = failing
    return Notice(f"{text}. dstack starts it again without end, and its machines cost money", f"{_end(run)}\n{hint}")


def _end(run: RunState) -> str:
    return f"End it: cloudrl down {run.name}"


def _failing_start(server: Server, run: RunState, enough_of: Mapping[str, int]) -> tuple[str, str] | None:
    """Which rank has ended so often in the same way before its agent said a word, and what to do; None if none has."""
    for node in run.nodes:
        for code, least in enough_of.items():
            failed = [attempt for attempt in node.attempts if attempt.code == code]
            timed_out = bool(failed) and _PULL_TIMED_OUT in failed[-1].reason
            enough = max(least, _TIMED_OUT_PULLS) if timed_out else least
            failed = failed[-enough:]
            if len(failed) < enough:
                continue
            outputs = [_output(server, run, node.rank, attempt.number, first=True) for attempt in failed]
            if any(STARTED in output for output in outputs):
                continue  # an agent was there: it counts
            image = run.answer.run_spec.configuration.image
            lines = [line.strip() for line in outputs[-1].splitlines() if line.strip()]
            last = f"; its last line: {lines[-1]}" if lines else ""
            text = (
                f"rank {node.rank} has ended {enough} times before its agent started, "
                f"the last time on {failed[-1].hostname}: {describe_failure(failed[-1])}{last}; image {image}"
            )
            return text, _start_hint(failed[-1], image)
    return None


def _start_hint(attempt: Attempt, image: str) -> str:
    """What to do about a node whose agent never starts."""
    for words, hint in _HINTS:
        if any(word in attempt.reason for word in words):
            return hint
    if attempt.code != _NO_CONTAINER:
        return (
            "An image needs python3, and sshd or a package manager with a way to the internet: "
            "docs/cluster-definition.md\n"
            f"Try it: docker run --rm {image} sh -c 'command -v python3 sshd'"
        )
    if _PULL_TIMED_OUT in attempt.reason:
        return (
            "dstack gives a pull 20 minutes. Take a smaller image, a registry that is nearer, or a machine type "
            "with a faster network: --set dstack.instance_types=[...]"
        )
    return f"Is its name right? docker pull {image}\nA private one needs registry_auth: docs/cluster-definition.md"


def exit_reason(server: Server, run: RunState) -> tuple[Phase, str]:
    """Phase and reason in one line of a run that is over; no reason when it was stopped or done.

    The agent says it in its output: a final failure ends with exit status 0, so that dstack does not try for ever,
    and then only that tells; so does a cluster that has ended by itself to save money. Otherwise it is what dstack
    says of the node that ended first.
    """
    ended = sorted(run.nodes, key=lambda node: node.latest.finished_at or 0.0)
    outputs = [_output(server, run, node.rank) for node in ended]
    outcomes = [outcome for outcome in map(from_output, outputs) if outcome is not None]
    if run.status == "terminated":  # by the user: one node is stopped before the others, which miss it
        outcomes = [outcome for outcome in outcomes if outcome.final or outcome.phase == Phase.DOWN]
    if outcomes:
        outcome = min(outcomes, key=lambda candidate: (candidate.phase != Phase.DOWN, not candidate.final))
        return outcome.phase, outcome.reason
    refusals = [line for output in outputs for line in output.splitlines() if line.startswith(FAILED)]
    if refusals:
        return Phase.FAILED, refusals[0][len(FAILED) :]
    if run.status != "failed":
        return Phase.DOWN, ""
    for node, output in zip(ended, outputs, strict=True):
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        last = f"; its last line: {lines[-1]}" if lines and node.latest.status == "failed" else ""
        if node.latest.status == "failed" or node.latest.code in _LIMITS:
            return Phase.FAILED, f"rank {node.rank}: {describe_failure(node.latest)}{last}"
    return Phase.FAILED, run.reason or "failed"


def previous_attempts(server: Server, run: RunState) -> tuple[Mapping[str, Any], ...]:
    """The attempts before the present one, oldest first.

    Each is {attempt, last_attempt, submitted_at, ended_at, reason, nodes}: numbers count from 1, times are seconds
    since the epoch, `reason` is one line. Attempts in a row that found no machine for some rank are one entry: dstack
    makes one every few seconds, and does not list all of their nodes.
    """
    numbers = sorted({attempt.number for node in run.nodes for attempt in node.attempts} - {run.attempt})
    described: list[dict[str, Any]] = []
    waiting = False
    for number in numbers:
        ended = [(node.rank, attempt) for node in run.nodes for attempt in node.attempts if attempt.number == number]
        waited, waiting = waiting, {attempt.code for _, attempt in ended} <= {_NO_CAPACITY, *_CONSEQUENCES}
        reason = _agent_reason(server, run, ended) if number in numbers[-_READ_ATTEMPTS:] and not waiting else ""
        first = described.pop() if waited and waiting else {}
        described.append(
            {
                "attempt": number + 1,
                "submitted_at": min(attempt.submitted_at for _, attempt in ended),
                **first,
                "last_attempt": number + 1,
                "ended_at": max((attempt.finished_at or 0.0 for _, attempt in ended), default=0.0) or None,
                "reason": reason or (_lack(ended, first) if waiting else _dstack_reason(ended)),
                "nodes": [
                    {"rank": rank, "ip": attempt.hostname, "phase": attempt.status, "detail": attempt.reason}
                    for rank, attempt in ended
                ],
            }
        )
    return tuple(described)


def _lack(ended: list[tuple[int, Attempt]], before: Mapping[str, Any]) -> str:
    """What dstack says of the rank that has no machine; of an attempt that it does not list, what was said before."""
    lacking = {rank: attempt for rank, attempt in ended if attempt.code == _NO_CAPACITY}
    if lacking:
        return f"no machine for {ranks_text(lacking)}: {next(iter(lacking.values())).reason}"
    return str(before.get("reason") or "no machine for every rank")


def _agent_reason(server: Server, run: RunState, ended: list[tuple[int, Attempt]]) -> str:
    """The reason in the agents' own words, of the node that ended first if it has said one."""
    for rank, attempt in sorted(ended, key=lambda node: node[1].finished_at or 0.0):
        with suppress(CloudrlError):  # the log may be gone; the state of the cluster is worth more
            if (outcome := from_output(_output(server, run, rank, attempt.number))) is not None:
                return outcome.reason
    return ""


def _dstack_reason(ended: list[tuple[int, Attempt]]) -> str:
    """That of the node for which the others had to end."""
    with_reason = [node for node in ended if node[1].reason]
    causes = [node for node in with_reason if node[1].code not in _CONSEQUENCES] or with_reason
    if not causes:
        return "no reason given"
    rank, cause = causes[0]
    place = f" ({cause.hostname})" if cause.hostname else ""
    others = [other for other, attempt in causes[1:] if attempt.code == cause.code]
    return f"rank {rank}{place}: {cause.reason}{f'; likewise {ranks_text(others)}' if others else ''}"


def _output(server: Server, run: RunState, rank: int, attempt: int | None = None, *, first: bool = False) -> str:
    """The last lines of one node's output, or the first, in the latest attempt or the one of that number."""
    from cloudrl.providers.dstack.internals import PollLogsRequest

    job = next(planned for planned in run.answer.jobs if planned.job_spec.job_num == rank)
    wanted = [submission for submission in job.job_submissions if attempt in (None, submission.submission_num)]
    request = PollLogsRequest(run_name=run.name, job_submission_id=wanted[-1].id, descending=not first, limit=_PAGE)
    try:
        events = server.call(server.api.logs.poll, server.project, request).logs
    except InputError:  # where the server keeps its logs fails, and what is known of the run is worth more
        return ""
    pieces = [base64.b64decode(event.message) for event in (events if first else reversed(events))]
    return b"".join(pieces).decode("utf-8", "replace").replace("\r\n", "\n")
