"""Whether the cluster's agents can carry a job through: it waits its turn, and goes on by itself after a loss."""

from collections.abc import Iterator
from dataclasses import replace

from cloudrl.errors import InputError
from cloudrl.jobs.asynchronous import LOCAL
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.save_room import save_bytes
from cloudrl.jobs.submission import DurablePlan
from cloudrl.protocol.secret_names import is_secret, is_secret_override
from cloudrl.spec.hydra import integer, parse_overrides, split_key
from cloudrl.units import size_text
from cloudrl.verl import keys

RESUME_DECIDED_BY = frozenset({keys.RESUME_MODE, keys.RESUME_FROM, keys.LOCAL_DIR})
"""Keys with which a user decides where a job goes on, and no pass or agent does."""


def plan_durable(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: whether the agents can carry the job through; nothing where it was not asked for."""
    if not draft.options.durable:
        return draft
    values, cluster = draft.values, draft.cluster
    nodes, is_shared = integer(values.get(keys.NODES)), cluster.shared_checkpoints
    is_elsewhere = nodes not in (None, cluster.gpu_nodes)
    plan = DurablePlan(
        (nodes or cluster.gpu_nodes) * (integer(values.get(keys.GPUS)) or cluster.gpus_per_node),
        integer(values.get(keys.STEPS)),
        saves=(integer(values.get(keys.SAVE_FREQ)) or -1) > 0,
        chooses_step=is_shared and (is_elsewhere or bool(_decided(draft))),
    )
    if not plan.saves:
        anew = "the job saves nothing, so each attempt begins anew"
        draft = draft.warning(f"{'' if snapshot.is_script else '--durable: '}{anew}; {keys.SAVE_FREQ}=10 saves")
    refused = [*_refusals(draft)] if not snapshot.is_script else []
    if is_elsewhere and not is_shared:
        refused.append(
            InputError(
                f"--durable: the job trains on {nodes} of {cluster.gpu_nodes} nodes, and it is not known on which",
                hint=f"{keys.NODES}={cluster.gpu_nodes}",
            )
        )
    return replace(draft.refused(*refused).warning(*_without_room(draft)), durable=plan)


def _decided(draft: JobDraft) -> list[str]:
    """Keys with which the user decides where the job goes on."""
    asked = parse_overrides(draft.job.with_overrides(draft.options.overrides).overrides)
    return sorted(RESUME_DECIDED_BY & asked.keys())


def _without_room(draft: JobDraft) -> Iterator[str]:
    """A disk that has no room for the copies that make a step safe; what is known of a plan is the least."""
    cluster, report = draft.cluster, draft.memory
    if report is None or cluster.shared_checkpoints or cluster.gpu_nodes < 2 or cluster.provider == LOCAL:
        return
    part = save_bytes(report.estimate, cluster.gpu_nodes)
    if 0 < cluster.disk_bytes < 2 * part:
        yield (
            f"--durable: a step takes {size_text(part)} of each node's disk, its copy from another node as much "
            f"again, and {size_text(cluster.disk_bytes)} are free: a lost machine would take the step with it. "
            "A larger disk: --set disk=SIZE"
        )


def _refusals(draft: JobDraft) -> Iterator[InputError]:
    cluster = draft.cluster
    if not cluster.has_agents:
        yield InputError(
            f"--durable: cluster {cluster.name!r} has no agents that could carry the job through",
            hint="Submit it to a cluster that `cloudrl up` started: --cluster NAME",
        )
        return
    if (decided := _decided(draft)) and not cluster.shared_checkpoints:
        yield InputError(
            f"--durable: the job sets {decided[0]}, and each attempt goes on from the newest step that is whole",
            hint=f"Leave out {', '.join(decided)}\nTo continue a run: --name RUN",
        )
    volatile = sorted({*draft.secrets, *(name for name, value in draft.variables.items() if value and is_secret(name))})
    if volatile:
        yield InputError(
            f"--durable: {', '.join(volatile)} would be in the nodes' memory alone, and gone after a restart",
            hint=f"Give it to the cluster, under `secrets:` in its file\nKeep it here: --env {volatile[0]}=",
        )
    shown = [key for key, value in draft.arguments.items() if value and is_secret_override(split_key(key)[1])]
    if shown:
        yield InputError(
            f"--durable: {shown[0]} is part of the command, which every node would write to its disk",
            hint="Give it to the cluster, under `secrets:` in its file",
        )
