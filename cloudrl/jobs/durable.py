"""Whether the cluster's agents can carry a job through: it waits its turn, and goes on by itself after a loss."""

from collections.abc import Iterator
from dataclasses import replace

from cloudrl.errors import InputError
from cloudrl.jobs.asynchronous import LOCAL, is_placed, training_shape
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.keeping import look_at_kept, newest_kept, refuse_without_durable
from cloudrl.jobs.save_room import save_bytes
from cloudrl.jobs.step_copies import copied_bytes, warnings_of_copies
from cloudrl.jobs.submission import DurablePlan
from cloudrl.protocol.mirrors import S3_KEYS, parse_mirror
from cloudrl.protocol.secret_names import is_secret, is_secret_override
from cloudrl.spec.hydra import integer, parse_overrides, split_key
from cloudrl.spec.sizes import size_bytes
from cloudrl.units import duration_text, size_text
from cloudrl.verl import keys

RESUME_DECIDED_BY = frozenset({keys.RESUME_MODE, keys.RESUME_FROM, keys.LOCAL_DIR})
"""Keys with which a user decides where a job goes on, and no pass or agent does."""


def plan_durable(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: whether the agents can carry the job through; nothing where it was not asked for."""
    mirror = draft.options.mirror or ""
    if not draft.options.durable:
        needs = InputError("--mirror keeps copies of a durable job alone", hint="Add --durable, or leave out --mirror")
        return draft.refused(*((needs,) if mirror else ()), *refuse_without_durable(draft))
    values, cluster = draft.values, draft.cluster
    nodes, gpus = training_shape(draft)
    takes_all = nodes == cluster.gpu_nodes
    plan = DurablePlan(
        nodes * gpus,
        integer(values.get(keys.STEPS)),
        saves=(integer(values.get(keys.SAVE_FREQ)) or -1) > 0,
        chooses_step=cluster.shared_checkpoints and bool(_decided(draft)),
        training_nodes=0 if takes_all else nodes,
        is_placed=not takes_all and is_placed(draft),
        keep=newest_kept(draft),
        keep_every=draft.options.keep_every or 0,
        keep_best=draft.options.keep_best or "",
        mirror=mirror,
        mirror_rate=size_bytes(draft.options.mirror_rate) if draft.options.mirror_rate else 0,
    )
    if plan.keep:
        # verl removes old steps of one node before it saves, whether or not a newer one is safe; the agents do it after
        kept = {key: None for key in (keys.CHECKPOINTS_KEPT, keys.CRITICS_KEPT) if key in values}
        draft = draft.without(*kept).overriding(kept)
    if not plan.saves:
        anew = "the job saves nothing, so each attempt begins anew"
        draft = draft.warning(f"{'' if snapshot.is_script else '--durable: '}{anew}; {keys.SAVE_FREQ}=10 saves")
    refused = [*(() if snapshot.is_script else _refusals(draft)), *_not_divided(draft)]
    draft = draft.refused(*refused).warning(*_without_room(draft), *_ended_for_good(draft))
    draft = draft.refused(*_bad_mirror(draft)).noting(*_mirrored(draft))
    draft = draft.warning(*warnings_of_copies(draft, snapshot, plan))
    draft = look_at_kept(draft)
    return replace(draft.noting(*_started_again(draft)), durable=plan)


def _bad_mirror(draft: JobDraft) -> Iterator[InputError]:
    """Why copies cannot be kept there, as far as is known before the cluster is asked."""
    text, cluster = draft.options.mirror, draft.cluster
    if not text:
        return
    try:
        place = parse_mirror(text)
    except InputError as error:
        yield error
        return
    if cluster.shared_checkpoints and (decided := _decided(draft)):  # otherwise `_refusals` has said it
        yield InputError(
            f"--mirror: the job sets {decided[0]}, and no step of a mirror would be found there",
            hint=f"Leave out {', '.join(decided)}\nTo continue a run: --name RUN",
        )
    missing = [name for name in S3_KEYS if name not in cluster.variables]
    if place.is_s3 and missing and cluster.provider != LOCAL:
        yield InputError(
            f"--mirror {text}: cluster {cluster.name!r} has no {' and no '.join(missing)}",
            hint="Give them to the cluster, under `secrets:` in its file, with AWS_REGION and, for another store than "
            "AWS, AWS_ENDPOINT_URL_S3 under `env:`",
        )


def _mirrored(draft: JobDraft) -> Iterator[str]:
    text, part = draft.options.mirror, copied_bytes(draft)
    if text:
        whose = "rank 0, which sends all," if draft.cluster.shared_checkpoints else "each node"
        takes = f" ({size_text(part)} of {whose} a save)" if part else ""
        yield f"--mirror: each save is copied to {text}{takes}; all nodes look at it before the job is sent"


def _ended_for_good(draft: JobDraft) -> Iterator[str]:
    cluster = draft.cluster
    if cluster.max_duration_s is not None and not cluster.is_started_again:
        limit = duration_text(cluster.max_duration_s)
        yield (
            f"--durable: the cluster ends {limit} after its start (max_duration), and nothing starts it again: its "
            "task has no `retry` on errors. The next cluster on the same volumes goes on with: cloudrl jobs resume ID"
        )


def _started_again(draft: JobDraft) -> Iterator[str]:
    cluster = draft.cluster
    if cluster.max_duration_s is not None and cluster.is_started_again:
        limit = duration_text(cluster.max_duration_s)
        yield (
            f"--durable: each start of the cluster lasts {limit} (max_duration); it saves before that, and starts "
            "again until the job is done. --max-cost limits what all starts cost"
        )


def _decided(draft: JobDraft) -> list[str]:
    """Keys with which the user decides where the job goes on."""
    asked = parse_overrides(draft.job.with_overrides(draft.options.overrides).overrides)
    return sorted(RESUME_DECIDED_BY & asked.keys())


def _without_room(draft: JobDraft) -> Iterator[str]:
    """A disk that has no room for the copies that make a step safe; what is known of a plan is the least."""
    cluster, report = draft.cluster, draft.memory
    if report is None or cluster.shared_checkpoints or cluster.gpu_nodes < 2 or cluster.provider == LOCAL:
        return
    part = save_bytes(report.estimate, training_shape(draft)[0])
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


def _not_divided(draft: JobDraft) -> Iterator[InputError]:
    """Why the agents cannot choose the nodes of a job that does not train on all of them."""
    cluster = draft.cluster
    nodes, _ = training_shape(draft)
    if nodes == cluster.gpu_nodes or not cluster.has_agents:
        return
    divided = f"--durable: the job trains on {nodes} of {cluster.gpu_nodes} nodes"
    if not cluster.divides_nodes:
        yield InputError(
            f"{divided}, and the agents of cluster {cluster.name!r} are of an older release that cannot choose them",
            hint=f"Start the cluster again: cloudrl down {cluster.name}\n"
            f"Or train on all: {keys.NODES}={cluster.gpu_nodes}",
        )
    elif not (is_placed(draft) or cluster.shared_checkpoints or cluster.provider == LOCAL):
        yield InputError(
            f"{divided}, whose disks are their own: the agents can choose the nodes only of `python3 -m {keys.MAIN}` "
            "with the cluster's own image and PYTHONPATH",
            hint=f"Train on all: {keys.NODES}={cluster.gpu_nodes}\n"
            "Or start a cluster whose nodes share their checkpoints: --set volumes=[NAME:/checkpoints]",
        )
