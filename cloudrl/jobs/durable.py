"""A job that the cluster's agents carry through: what they have to know of it, and what its user should know."""

from collections.abc import Iterator
from dataclasses import replace

from cloudrl.errors import InputError
from cloudrl.jobs.asynchronous import is_placed, training_shape
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.durability import decided_keys, not_divided, obstacles, why_plain, without_agents
from cloudrl.jobs.keeping import look_at_kept, newest_kept, refuse_without_durable
from cloudrl.jobs.save_room import save_bytes
from cloudrl.jobs.step_copies import copied_bytes, warnings_of_copies
from cloudrl.jobs.submission import DurablePlan
from cloudrl.protocol.mirrors import S3_KEYS, parse_mirror
from cloudrl.spec.hydra import integer
from cloudrl.spec.sizes import size_bytes
from cloudrl.units import duration_text, size_text
from cloudrl.verl import keys


def plan_durable(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: what the agents have to know of a job that they carry through.

    One that they cannot carry through is refused if the user has asked for it. Otherwise `plain_because` says why not.
    """
    if not draft.may_be_durable:
        needs = InputError("--mirror keeps copies of a durable job alone", hint="Leave out --no-durable, or --mirror")
        return draft.refused(*((needs,) if draft.options.mirror else ()), *refuse_without_durable(draft))
    if not draft.must_be_durable and (obstacle := why_plain(draft, snapshot)) is not None:
        return replace(draft, plain_because=obstacle.note)
    plan = _plan(draft)
    if plan.keep:
        # verl removes old steps of one node before it saves, whether or not a newer one is safe; the agents do it after
        kept = {key: None for key in (keys.CHECKPOINTS_KEPT, keys.CRITICS_KEPT) if key in draft.values}
        draft = draft.without(*kept).overriding(kept)
    if not plan.saves:
        draft = draft.warning(f"the job saves nothing, so each attempt begins anew; {keys.SAVE_FREQ}=10 saves")
    in_the_way = () if snapshot.is_script else tuple(without_agents(draft)) or tuple(obstacles(draft))
    refused = (each.refusal(_asking_option(draft)) for each in (*in_the_way, *not_divided(draft)))
    draft = draft.refused(*refused).warning(*_without_room(draft), *_ended_for_good(draft))
    draft = draft.refused(*_bad_mirror(draft)).noting(*_mirrored(draft))
    draft = look_at_kept(draft.warning(*warnings_of_copies(draft, snapshot, plan)))
    return replace(draft.noting(*_started_again(draft), *_lost_with_its_machine(draft, snapshot)), durable=plan)


def _asking_option(draft: JobDraft) -> str:
    """The option by which the user has asked for a durable job."""
    options = draft.options
    if options.durable:
        return "--durable"
    return "--mirror" if options.mirror else "--keep-every" if options.keep_every else "--keep-best"


def _plan(draft: JobDraft) -> DurablePlan:
    values, cluster = draft.values, draft.cluster
    nodes, gpus = training_shape(draft)
    takes_all = nodes == cluster.gpu_nodes
    return DurablePlan(
        nodes * gpus,
        integer(values.get(keys.STEPS)),
        saves=(integer(values.get(keys.SAVE_FREQ)) or -1) > 0,
        chooses_step=cluster.shared_checkpoints and bool(decided_keys(draft)),
        training_nodes=0 if takes_all else nodes,
        is_placed=not takes_all and is_placed(draft),
        keep=newest_kept(draft),
        keep_every=draft.options.keep_every or 0,
        keep_best=draft.options.keep_best or "",
        mirror=draft.options.mirror or "",
        mirror_rate=size_bytes(draft.options.mirror_rate) if draft.options.mirror_rate else 0,
    )


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
    if cluster.shared_checkpoints and (decided := decided_keys(draft)):  # otherwise `obstacles` has said it
        yield InputError(
            f"--mirror: the job sets {decided[0]}, and no step of a mirror would be found there",
            hint=f"Leave out {', '.join(decided)}\nTo continue a run: --name RUN",
        )
    missing = [name for name in S3_KEYS if name not in cluster.variables]
    if place.is_s3 and missing and not cluster.is_one_machine:  # whose nodes have the environment of their user
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
            f"the cluster ends {limit} after its start (max_duration), and nothing starts it again: its task has no "
            "`retry` on errors. The next cluster on the same volumes continues the job with: cloudrl jobs resume ID"
        )


def _started_again(draft: JobDraft) -> Iterator[str]:
    cluster = draft.cluster
    if cluster.max_duration_s is not None and cluster.is_started_again:
        limit = duration_text(cluster.max_duration_s)
        yield (
            f"each start of the cluster lasts {limit} (max_duration); it saves before that, and starts again until "
            "the job is done. --max-cost limits what all starts cost; with --no-durable there is one start"
        )


def _lost_with_its_machine(draft: JobDraft, snapshot: Snapshot) -> Iterator[str]:
    """What is not safe of a job on one machine that may be gone for good."""
    cluster, machines = draft.cluster, snapshot.machines
    if cluster.nodes > 1 or draft.options.mirror or cluster.disks_stay:
        return
    if machines is None or machines.has_own_disks:
        unless = "" if machines is not None else f", unless {cluster.checkpoint_dir} is on a network volume"
        yield (
            f"if the only machine is lost, the job and its steps are lost with it{unless}. "
            "Copies in a folder or bucket: --mirror URL"
        )


def _without_room(draft: JobDraft) -> Iterator[str]:
    """A disk that has no room for the copies that make a step safe; what is known of a plan is the least."""
    cluster, report = draft.cluster, draft.memory
    if report is None or cluster.has_one_disk or cluster.gpu_nodes < 2:
        return
    part = save_bytes(report.estimate, training_shape(draft)[0])
    if 0 < cluster.disk_bytes < 2 * part:
        yield (
            f"a step takes {size_text(part)} of each node's disk, its copy from another node as much "
            f"again, and {size_text(cluster.disk_bytes)} are free: a lost machine would take the step with it. "
            "A larger disk: --set disk=SIZE"
        )
