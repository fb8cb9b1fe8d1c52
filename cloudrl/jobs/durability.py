"""Whether the agents of a cluster can carry a job through, and whether they do so by default. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloudrl.errors import InputError
from cloudrl.jobs.asynchronous import is_placed, training_shape
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.protocol.secret_names import is_secret, is_secret_override
from cloudrl.spec.hydra import integer, override_argument, split_key
from cloudrl.verl import keys
from cloudrl.verl.keys import has_key
from cloudrl.verl.transfer_queue import uses_transfer_queue

RESUME_DECIDED_BY = frozenset({keys.RESUME_MODE, keys.RESUME_FROM, keys.LOCAL_DIR})
"""Keys with which a user decides where a job goes on, and no pass or agent does."""
_SEVERAL_RUNS = {"--multirun", "-m"}
"""Of Hydra (1.3, _internal/utils.py: get_args_parser)."""
_ANYWAY_HINT = "All the same: --durable"


@dataclass(frozen=True)
class Obstacle:
    """Why a job is not carried through.

    Attributes:
        reason: half a sentence about the job, called "it".
        hint: what to do about it; the first line is the shortest way.
    """

    reason: str
    hint: str

    def refusal(self, option: str) -> InputError:
        """For a user who has asked for a durable job with this option."""
        return InputError(f"{option}: {self.reason}", hint=self.hint)

    @property
    def note(self) -> str:
        """For a user who did not say."""
        return f"this job is not started again if a machine is lost: {self.reason}. {self.hint.splitlines()[0]}"


def why_plain(draft: JobDraft, snapshot: Snapshot) -> Obstacle | None:
    """The one decision for a user who did not say: None for a durable job, else why it goes to Ray alone.

    Args:
        draft: the finished job, planned as a durable one.
        snapshot: of the cluster, with the jobs that run on it.
    """
    return next(_all(draft, snapshot), None)


def _all(draft: JobDraft, snapshot: Snapshot) -> Iterator[Obstacle]:
    yield from without_agents(draft)
    yield from _not_by_itself(draft)
    yield from obstacles(draft)
    yield from not_divided(draft)
    yield from _busy(draft, snapshot)


def without_agents(draft: JobDraft) -> Iterator[Obstacle]:
    """Of a cluster whose agents cannot do it, whatever the job is."""
    cluster = draft.cluster
    if not cluster.has_agents:
        yield Obstacle(
            f"cluster {cluster.name!r} has no agents that could carry it through",
            hint="Submit it to a cluster that `cloudrl up` started: --cluster NAME",
        )
    elif not (draft.must_be_durable or cluster.divides_nodes):
        yield Obstacle(
            f"the agents of cluster {cluster.name!r} are of an older release",
            hint=f"Start the cluster again: cloudrl down {shlex.quote(cluster.name)}",
        )


def obstacles(draft: JobDraft) -> Iterator[Obstacle]:
    """What would not come back after a restart: a command that decides where it goes on, and secrets."""
    cluster = draft.cluster
    if (decided := decided_keys(draft)) and not cluster.shared_checkpoints:
        yield Obstacle(
            f"it sets {decided[0]}, but each attempt goes on from the newest step that is whole",
            hint=f"Leave out {', '.join(decided)}\nTo continue a run: --name RUN",
        )
        return
    volatile = sorted({*draft.secrets, *(name for name, value in draft.variables.items() if value and is_secret(name))})
    if volatile:
        yield Obstacle(
            f"{', '.join(volatile)} would be in the nodes' memory alone, and gone after a restart",
            hint=f"Give {'it' if len(volatile) == 1 else 'them'} to the cluster, under `secrets:` in its file\n"
            f"Keep it here: --env {volatile[0]}=",
        )
    shown = [key for key, value in draft.arguments.items() if value and is_secret_override(split_key(key)[1])]
    if shown:
        yield Obstacle(
            f"{shown[0]} is part of the command, which every node would write to its disk",
            hint="Give it to the cluster, under `secrets:` in its file",
        )


def not_divided(draft: JobDraft) -> Iterator[Obstacle]:
    """Why the agents cannot choose the nodes of a job that does not train on all of them."""
    cluster = draft.cluster
    nodes, _ = training_shape(draft)
    if nodes == cluster.gpu_nodes or not cluster.has_agents:
        return
    divided = f"it trains on {nodes} of {cluster.gpu_nodes} nodes"
    if not cluster.divides_nodes:
        yield Obstacle(
            f"{divided}, and the agents of cluster {cluster.name!r} are of an older release that cannot choose them",
            hint=f"Start the cluster again: cloudrl down {shlex.quote(cluster.name)}\n"
            f"Or train on all: {keys.NODES}={cluster.gpu_nodes}",
        )
    elif not (is_placed(draft) or cluster.has_one_disk):
        yield Obstacle(
            f"{divided}, whose disks are their own: the agents can choose the nodes only of `python3 -m {keys.MAIN}` "
            "with the cluster's own image and PYTHONPATH",
            hint=f"Train on all: {keys.NODES}={cluster.gpu_nodes}\n"
            "Or start a cluster whose nodes share their checkpoints: --set volumes=[NAME:/checkpoints]",
        )


def decided_keys(draft: JobDraft) -> list[str]:
    """Keys with which the user decides where the job goes on."""
    asked = draft.job.with_overrides(draft.options.overrides).values
    return sorted(RESUME_DECIDED_BY & asked.keys())


def _not_by_itself(draft: JobDraft) -> Iterator[Obstacle]:
    """Of a job that the agents could start again, but that would begin anew or wait for its user."""
    program, values, release = draft.job.entrypoint, draft.values, draft.cluster.verl_version
    if draft.options.debug is not None or draft.options.post_mortem:
        yield Obstacle("with --debug a task may wait for you, and the next jobs with it", hint=_ANYWAY_HINT)
    elif keys.MAIN not in program or _SEVERAL_RUNS & {*program[program.index(keys.MAIN) :]}:
        yield Obstacle(f"the steps of `{_program_text(program)}` are unknown to the agents", hint=_ANYWAY_HINT)
    elif not has_key(release, keys.RESUME_MODE):
        yield Obstacle(f"verl {release} cannot go on from a step", hint=_ANYWAY_HINT)
    elif values.get(keys.VAL_ONLY, "").lower() == "true":
        yield Obstacle(f"{keys.VAL_ONLY} has it save nothing to go on from", hint=_ANYWAY_HINT)
    elif (integer(values.get(keys.SAVE_FREQ)) or -1) <= 0:
        yield Obstacle("it saves nothing to go on from", hint=f"To save: {keys.SAVE_FREQ}=10")


def _program_text(program: Sequence[str]) -> str:
    return shlex.join(program[:3]) + (" ..." if len(program) > 3 else "")


def _busy(draft: JobDraft, snapshot: Snapshot) -> Iterator[Obstacle]:
    """Another job runs beside which this one could start, while the agents run one job at a time.

    Of two jobs that cannot run side by side, the second one is refused when it is sent.
    """
    words = (*draft.job.entrypoint, *(override_argument(key, value) for key, value in draft.arguments.items()))
    is_exclusive = uses_transfer_queue(" ".join(words), draft.cluster.verl_version)
    beside = [running for running in snapshot.running if not (is_exclusive and running.is_exclusive)]
    if beside:
        yield Obstacle(
            f"{beside[0].name} runs on the cluster, and the agents run one job after the other",
            hint="To wait for its turn: --queue",
        )
