"""`--async` and `--rollout-nodes` as verl's keys, and verl's controller on the head, where a resume looks for it."""

from dataclasses import replace

from cloudrl.errors import InputError
from cloudrl.jobs.debugging import sees_nodes_path
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.protocol.folders import ON_HEAD
from cloudrl.protocol.limits import CPUS_PER_GPU
from cloudrl.spec import hydra_text
from cloudrl.spec.hydra import integer, parse_overrides
from cloudrl.verl import keys
from cloudrl.verl.async_modes import (
    ASYNC,
    COUNT_OFTEN,
    CPUS_PER_ROLLOUT_GPU,
    MINI_BATCH,
    PINNED,
    SEPARATE,
    SYNC_STEP,
    colocated,
    fitting_updates,
    pinned_queue,
    queue_units,
    separated,
)
from cloudrl.verl.composition import compose, is_known
from cloudrl.verl.keys import QUEUE_UNITS, has_key
from cloudrl.verl.setting import BATCH, Setting
from cloudrl.verl.transfer_queue import uses_transfer_queue

PLAIN = ("python3", "-m", keys.MAIN)


def set_trainer_mode(draft: JobDraft, _snapshot: Snapshot) -> JobDraft:
    """Pass: the trainer's mode that the options ask for; what the user says in verl's own keys wins.

    Raises:
        InputError: The trainer has no such mode, or the nodes or the batch cannot be divided so.
    """
    options, cluster = draft.options, draft.cluster
    if not options.asynchronous and options.rollout_nodes is None:
        return draft
    option = "--async" if options.rollout_nodes is None else f"--rollout-nodes {options.rollout_nodes}"
    typed = parse_overrides({key: str(value) for key, value in draft.overrides.items()})
    if keys.TRAINER_MODE in typed:
        mode = typed[keys.TRAINER_MODE]
        raise InputError(f"{option} and {keys.TRAINER_MODE}={mode} both choose the mode", hint=f"~{keys.TRAINER_MODE}")
    if keys.MAIN not in draft.job.entrypoint or not has_key(cluster.verl_version, keys.USE_V1):
        runs = f"verl {cluster.verl_version}" if keys.MAIN in draft.job.entrypoint else " ".join(draft.job.entrypoint)
        raise InputError(
            f"{option} needs the trainer of verl 0.9 ({keys.MAIN}), and the job runs {runs}",
            hint="cloudrl recipes list",
        )
    if options.rollout_nodes is None:
        made = colocated()
    else:
        _check_nodes(options.rollout_nodes, cluster.gpu_nodes, option)
        made = separated(
            nodes=cluster.gpu_nodes,
            rollout_nodes=options.rollout_nodes,
            gpus_per_node=cluster.gpus_per_node,
            updates=_updates(draft, option),
            on_cpu=draft.job.device == "cpu",
        )
    return draft.without(*made).overriding({**made, **draft.overrides})


def _check_nodes(rollout_nodes: int, nodes: int, option: str) -> None:
    if 1 <= rollout_nodes < nodes:
        return
    if nodes < 2:
        raise InputError(
            f"{option}: the cluster has {nodes} node, and training needs one",
            hint="The rollout shares the GPUs of training: --async\nOr a cluster with more: --nodes 2",
        )
    raise InputError(
        f"{option} of {nodes} nodes: at least one trains, and at least one generates",
        hint=f"--rollout-nodes {nodes // 2}",
    )


def _updates(draft: JobDraft, option: str) -> int:
    """Updates of the actor in a step; 1 where batch or mini batch are no numbers, which is refused later on."""
    batch, mini = _number(draft, BATCH), _number(draft, MINI_BATCH)
    if batch is None or mini is None or batch < 1 or mini < 1:
        return 1
    fitting = fitting_updates(batch, mini)
    if MINI_BATCH in fitting:
        raise InputError(
            f"{option}: {BATCH}={batch} cannot be divided by {MINI_BATCH}={mini}",
            hint=f"{MINI_BATCH}={fitting[MINI_BATCH]}",
        )
    return int(fitting[SYNC_STEP])


def _number(draft: JobDraft, key: str) -> int | None:
    if key in draft.values:
        return integer(draft.values[key])
    release = draft.cluster.verl_version
    if release is None or not is_known(release):
        return None
    return Setting(compose(release, ()).values or {}, 0).whole(key)


def place_controller(draft: JobDraft, _snapshot: Snapshot) -> JobDraft:
    """Pass: have verl's controller run on the head, where a resume looks for what it has saved.

    In an asynchronous mode its queue is stored there as well. Nodes of one machine share a disk, and a single node has
    one place only. A command of the user's own, and a PYTHONPATH or an image that hides our module, are left as they
    are, and so is all of it on agents without that module.
    """
    job, cluster = draft.job, draft.cluster
    if draft.values.get(keys.TRAINER_MODE) in ASYNC:
        draft = replace(_with_same_units(draft), variables={**COUNT_OFTEN, **draft.variables})
    has_disks = cluster.nodes > 1 and cluster.places_controllers and not cluster.is_one_machine
    can_be_placed = job.entrypoint[:3] == PLAIN and sees_nodes_path(draft)
    if not has_disks or not can_be_placed or not has_key(cluster.verl_version, keys.USE_V1):
        return draft
    values = draft.values
    if values.get(keys.USE_V1, "").lower() == "false":
        return draft
    entrypoint = ("python3", "-m", ON_HEAD, keys.MAIN, *job.entrypoint[3:])
    draft = replace(draft, job=job.replace(entrypoint=entrypoint))
    if values.get(keys.TRAINER_MODE) not in ASYNC:
        return draft
    asked = draft.asked.values  # the number of units that fit all nodes is no wish of the user's
    room, units = _room_on_head(draft), integer(asked.get(QUEUE_UNITS, ""))
    pinned = pinned_queue(room)
    most = _most_on_head(draft)
    if most is not None and units is not None and units > max(1, most) and PINNED not in asked:
        draft = draft.refused(
            InputError(
                f"{QUEUE_UNITS}={units}: the queue is on the head, where the workers leave {most} CPUs, and each unit "
                "takes one: the workers would wait for ever",
                hint=f"{QUEUE_UNITS}={pinned[QUEUE_UNITS]}",
            )
        )
    given = {key: hydra_text(value) for key, value in pinned.items() if key.lstrip("+") not in asked}
    return replace(draft, defaults={**draft.defaults, **given})


def is_placed(draft: JobDraft) -> bool:
    """Whether the job's command puts verl's controller on the head, and training on nodes that it is given."""
    return ON_HEAD in draft.job.entrypoint and draft.cluster.places_training


def can_choose_nodes(draft: JobDraft) -> bool:
    """Whether a resume finds its shards though fewer nodes train than there are.

    Nodes of one machine share a disk.
    """
    return is_placed(draft) or (draft.cluster.is_one_machine and draft.cluster.places_training)


def training_shape(draft: JobDraft) -> tuple[int, int]:
    """Nodes that train, and GPUs that each of them takes; all of the cluster where the job does not say it."""
    values, cluster = draft.values, draft.cluster
    nodes, gpus = integer(values.get(keys.NODES)), integer(values.get(keys.GPUS))
    return cluster.gpu_nodes if nodes is None else nodes, gpus or cluster.gpus_per_node


def _with_same_units(draft: JobDraft) -> JobDraft:
    """With a number of storage units that does not depend on the cluster: a resume needs as many as were saved."""
    job, cluster = draft.job, draft.cluster
    asked = draft.asked.values
    command = " ".join([*job.entrypoint, f"{keys.USE_V1}={draft.values.get(keys.USE_V1, 'true')}"])
    runs_queue = uses_transfer_queue(command, cluster.verl_version)
    if QUEUE_UNITS in asked or not runs_queue or asked.get(keys.QUEUE_BACKEND, "SimpleStorage") != "SimpleStorage":
        return draft
    units = queue_units(integer(parse_overrides(draft.defaults).get(QUEUE_UNITS, "")))
    return replace(draft, defaults={**draft.defaults, QUEUE_UNITS: hydra_text(units)})


def _room_on_head(draft: JobDraft, cpus_per_gpu: int = CPUS_PER_GPU) -> int | None:
    """CPUs that a node which trains leaves beside its workers and the queue's controller; None if unknown."""
    cluster, gpus = draft.cluster, integer(draft.values.get(keys.GPUS, str(draft.cluster.gpus_per_node)))
    return cluster.cpus_per_node - cpus_per_gpu * gpus - 1 if cluster.cpus_per_node and gpus is not None else None


def _most_on_head(draft: JobDraft) -> int | None:
    """Storage units for which the head has room beside the workers that it must have; None if it need not have any."""
    values, cluster = draft.values, draft.cluster
    training = integer(values.get(keys.NODES, str(cluster.gpu_nodes))) or 0
    if training == cluster.nodes:
        return _room_on_head(draft)
    is_separate = values.get(keys.TRAINER_MODE) == SEPARATE
    rollout = (integer(values.get(f"{keys.ROLLOUT}.nnodes", "0")) or 0) if is_separate else 0
    return _room_on_head(draft, CPUS_PER_ROLLOUT_GPU) if training + rollout == cluster.nodes else None
