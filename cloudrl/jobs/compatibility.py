"""Whether a job and a cluster fit: what cannot work is refused before it costs anything."""

import math
from collections.abc import Mapping

from cloudrl.data.rewards import reward_of
from cloudrl.errors import InputError
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.services import check_own_search, check_services
from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.limits import CPUS_PER_GPU
from cloudrl.spec import Gpu, Job
from cloudrl.spec.cluster import ROLLOUTS
from cloudrl.spec.hydra import integer
from cloudrl.verl import keys
from cloudrl.verl.keys import brings_scores, has_key, release_number
from cloudrl.verl.tool_agent import check_tool_agent
from cloudrl.verl.transfer_queue import uses_transfer_queue

_OF_ONE_REPLICA = tuple(f"{keys.ROLLOUT}.{each}_parallel_size" for each in ("tensor_model", "data", "pipeline_model"))
_ELSEWHERE = (f"{keys.ROLLOUT}.nnodes", f"{keys.ROLLOUT}.disaggregation.")
"""Keys that give the rollout GPUs of its own, or replicas of another kind."""
USUAL_QUEUE_UNITS = 8
"""verl 0.9.1, trainer/config/transfer_queue/transfer_queue.yaml."""


def check_compatibility(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: refuse what cannot work; say what the user should know of running this job there.

    Raises:
        InputError: It cannot work; the message holds both values.
    """
    job, cluster, values = draft.asked, draft.cluster, draft.values
    _check_shape(values, cluster)
    _check_replicas(values, cluster)
    _check_rollout(job, cluster)
    _check_queue(job, values, cluster)
    check_services(job, draft.variables, cluster)
    check_own_search(values, cluster)
    notes = [*_device_notes(job, cluster), *_release_notes(job, cluster), *_shape_notes(job, cluster)]
    _check_scored(job, cluster, values)
    written = {upload.to: upload.text for upload in draft.uploads}
    typed = {key: written.get(value, value) for key, value in values.items()}
    notes += check_tool_agent(typed, cluster, lambda path: snapshot.files.at(path).source)
    if not has_key(cluster.verl_version, keys.RESUME_MODE):
        notes.append(
            f"verl {cluster.verl_version} cannot resume a run: one that is interrupted starts over from its model"
        )
    return draft.noting(*notes)


def _check_shape(values: Mapping[str, str], cluster: ClusterFacts) -> None:
    nodes, gpus = cluster.gpu_nodes, cluster.gpus_per_node
    for key, available, things, option in (
        (keys.NODES, nodes, f"{nodes} node{'' if nodes == 1 else 's'}", "--nodes"),
        (keys.GPUS, gpus, f"{gpus} GPU{'' if gpus == 1 else 's'} a node", "--gpu"),
    ):
        if key not in values:
            continue
        value = integer(values[key])
        if value is None and "${" not in values[key]:
            raise InputError(f"{key}={values[key]} is not a whole number", hint=f"For example {key}={available}")
        if value is not None and value < 1:
            raise InputError(f"{key}={value} is less than 1", hint=f"Leave it out: the cluster gives {key}={available}")
        if value is not None and value > available:
            raise InputError(
                f"{key}={value}, but cluster {cluster.name!r} has {things}: verl would wait for ever",
                hint=f"Leave {key} out, or bring up a larger cluster with cloudrl up ... {option}",
            )
    if cluster.gpus_per_node < 1:
        raise InputError(
            f"no node of cluster {cluster.name!r} offers a GPU to Ray, and verl places its workers on those",
            hint="A CPU node offers one when it is started with: ray start --num-gpus=1",
        )


def _check_replicas(values: Mapping[str, str], cluster: ClusterFacts) -> None:
    """GPUs of all replicas of the rollout engine are those of training.

    verl asserts it once all models are loaded (verl 0.9.1, workers/engine_workers.py: init_model; verl 0.1,
    workers/fsdp_workers.py: _build_rollout, of the tensor parallelism alone).
    """
    nodes = integer(values.get(keys.NODES, str(cluster.gpu_nodes)))
    gpus = integer(values.get(keys.GPUS, str(cluster.gpus_per_node)))
    sizes = {key: integer(values[key]) or 0 for key in _OF_ONE_REPLICA if key in values}
    has_own_gpus = any(key.startswith(_ELSEWHERE) for key in values)
    if has_own_gpus or nodes is None or gpus is None or min(sizes.values(), default=1) < 1:
        return
    replica = math.prod(sizes.values())
    if nodes * gpus % replica:
        settings = " and ".join(f"{key}={value}" for key, value in sizes.items() if value != 1)
        shape = f"{nodes} node{'' if nodes == 1 else 's'} with {gpus} GPU{'' if gpus == 1 else 's'}"
        fits = [size for size in range(1, replica) if nodes * gpus % size == 0][-1]
        raise InputError(
            f"{settings}: a replica of the rollout takes {replica} GPUs, "
            f"and {shape} cannot be divided into replicas of that size",
            hint=f"For example {_OF_ONE_REPLICA[0]}={fits}",
        )


def queue_room(job: Job, values: Mapping[str, str], cluster: ClusterFacts) -> int | None:
    """How many storage units verl's queue may have without taking the workers' CPUs; None where that is not known.

    verl's default trainer starts TransferQueue first (verl 0.9.1, trainer/main_ppo.py: TaskRunnerV1.run), which holds a
    CPU for its controller, on whatever node, and one for each storage unit (TransferQueue 0.1.11, controller.py and
    storage/simple_storage.py: num_cpus=1), spread evenly over the nodes (utils/common.py:
    get_node_round_robin_scheduling_strategies). Then the workers of a node want all of their CPUs at once, and wait for
    them without a deadline (single_controller/ray/base.py: get_placement_groups).

    verl's other actors, such as TaskRunner, agent loops, reward workers and rollout servers, name no CPUs. Those hold
    none while they run, and start where none is free (Ray 2.60, _private/ray_constants.py:
    DEFAULT_ACTOR_CREATION_CPU_SIMPLE; src/ray/raylet/scheduling/local_lease_manager.cc: GetRequiredResources).
    """
    nodes = integer(values.get(keys.NODES, str(cluster.gpu_nodes)))
    gpus = integer(values.get(keys.GPUS, str(cluster.gpus_per_node)))
    command = " ".join([*job.entrypoint, f"{keys.USE_V1}={values.get(keys.USE_V1, 'true')}"])
    has_units = values.get(keys.QUEUE_BACKEND, "SimpleStorage") == "SimpleStorage"
    if not has_units or not uses_transfer_queue(command, cluster.verl_version):
        return None
    if not cluster.cpus_per_node or gpus is None or nodes != cluster.gpu_nodes:  # fewer nodes: some have no workers
        return None
    return cluster.gpu_nodes * (cluster.cpus_per_node - CPUS_PER_GPU * gpus - 1)


def _check_queue(job: Job, values: Mapping[str, str], cluster: ClusterFacts) -> None:
    room, units = queue_room(job, values, cluster), integer(values.get(keys.QUEUE_UNITS, "1"))
    if room is None or units is None or units <= room:
        return
    least = CPUS_PER_GPU * (integer(values.get(keys.GPUS)) or cluster.gpus_per_node) + 2
    more = f"cloudrl up ... --set cpu={least}..\nverl's older trainer has no queue: {keys.USE_V1}=False"
    raise InputError(
        f"{cluster.cpus_per_node} CPUs a node are too few for verl, which would wait for ever: it reserves "
        f"{CPUS_PER_GPU} for each GPU, 1 for each storage unit of its queue ({units} in all), and 1 for the queue",
        hint=f"{keys.QUEUE_UNITS}={room}, or leave it out" if room > 0 else more,
    )


def _device_notes(job: Job, cluster: ClusterFacts) -> list[str]:
    known = cluster.has_agents  # only our agent knows what a node computes on
    if job.device == "gpu" and cluster.device == "cpu" and known:
        raise InputError(
            f"recipe {job.name!r} computes on GPUs, and cluster {cluster.name!r} on CPUs",
            hint="Take a recipe for CPUs, such as grpo-tiny, or a cluster with GPUs",
        )
    if job.device == "cpu" and cluster.device == "gpu" and known:
        return [f"recipe {job.name!r} computes on the CPU; the GPUs of cluster {cluster.name!r} stay idle"]
    return []


def _release_notes(job: Job, cluster: ClusterFacts) -> list[str]:
    """Keys are renamed between releases of verl; between patches of one release they have not been."""
    wanted, actual = job.verl, cluster.verl_version
    if wanted is None or actual is None or wanted == actual:
        return []
    differ = f"recipe {job.name!r} is written for verl {wanted}, and cluster {cluster.name!r} has {actual}"
    if wanted.split(".")[:2] != actual.split(".")[:2]:
        raise InputError(
            differ,
            hint=f"Take a recipe for verl {actual}, an image with verl {wanted}, or send it along: "
            "--working-dir FOLDER",
        )
    return [differ]


def _check_rollout(job: Job, cluster: ClusterFacts) -> None:
    """An engine is imported minutes after the start, in an actor of its own."""
    if job.rollout in ROLLOUTS and cluster.rollouts and job.rollout not in cluster.rollouts:
        raise InputError(
            f"recipe {job.name!r} generates with {job.rollout}, and the image of cluster {cluster.name!r} has "
            f"{', '.join(cluster.rollouts)}",
            hint=f"cloudrl up ... --set rollout={job.rollout}, or a recipe for {cluster.rollouts[0]}",
        )


def _check_scored(job: Job, cluster: ClusterFacts, values: Mapping[str, str]) -> None:
    """For rows of an unknown source, verl raises NotImplementedError in step 1 (data/rewards.py)."""
    brings_its_own = any(map(brings_scores, values))
    if brings_its_own or keys.MAIN not in job.entrypoint or release_number(cluster.verl_version) < (0, 2):
        return
    for name in job.data:
        source = BUILT_IN[name].load().DATA_SOURCE if name in BUILT_IN else None
        if source is None or reward_of(source) is not None:
            continue
        if ours := BUILT_IN[name].reward:
            raise InputError(
                f"verl has no reward function for data set {name!r}, and the job names none",
                hint=f"cloudrl has one: {keys.REWARD_PATH}={ours}",
            )
        raise InputError(
            f"data set {name!r} is for Search-R1's fork of verl: verl itself has no reward function for its data "
            f"source {source!r}",
            hint=f"The same questions for verl's tool agent: --data {name}_tool, as in recipe search-grpo\n"
            "With the fork: cloudrl submit search-r1 --working-dir ./Search-R1",
        )


def _shape_notes(job: Job, cluster: ClusterFacts) -> list[str]:
    """Batch sizes and parallelism are made for a number of GPUs; another one may fit or not."""
    nodes, gpus = job.nodes or cluster.gpu_nodes, Gpu.exact_count(job.gpu) or cluster.gpus_per_node
    if job.device == "cpu" or (nodes, gpus) == (cluster.gpu_nodes, cluster.gpus_per_node):
        return []
    made = f"recipe {job.name!r} is made for {nodes} node{'s' * (nodes > 1)} with {gpus} GPUs"
    actual = f"cluster {cluster.name!r} has {cluster.gpu_nodes} with {cluster.gpus_per_node}"
    return [f"{made}, and {actual}: its batch sizes and what it keeps in memory may want a change"]
