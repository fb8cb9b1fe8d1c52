"""Whether verl's workers, the replicas of its rollout and its queue fit onto the nodes of a cluster.

Each check raises `InputError` with both values.
"""

import math
from collections.abc import Mapping

from cloudrl.errors import InputError
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.limits import CPUS_PER_GPU
from cloudrl.spec import Job
from cloudrl.spec.hydra import integer
from cloudrl.verl import keys
from cloudrl.verl.async_modes import ASYNC, SEPARATE
from cloudrl.verl.transfer_queue import uses_transfer_queue

_OF_ONE_REPLICA = tuple(f"{keys.ROLLOUT}.{each}_parallel_size" for each in ("tensor_model", "data", "pipeline_model"))
_ELSEWHERE = (f"{keys.ROLLOUT}.nnodes", f"{keys.ROLLOUT}.disaggregation.")
"""Keys that give the rollout GPUs of its own, or replicas of another kind."""
USUAL_QUEUE_UNITS = 8
"""verl 0.9.1, trainer/config/transfer_queue/transfer_queue.yaml."""


def check_shape(values: Mapping[str, str], cluster: ClusterFacts) -> None:
    """Refuse a job that asks for more nodes or GPUs than the cluster has."""
    nodes, gpus = cluster.gpu_nodes, cluster.gpus_per_node
    for key, available, things, option in (
        (keys.NODES, nodes, f"{nodes} node{'' if nodes == 1 else 's'}", "--nodes"),
        (keys.GPUS, gpus, f"{gpus} GPU{'' if gpus == 1 else 's'} a node", "--gpu"),
    ):
        if key not in values:
            continue
        value = integer(values[key])
        if value is None and "${" not in values[key]:
            raise InputError(f"{key}={values[key]} is not a whole number", hint=f"{key}={available}")
        if value is not None and value < 1:
            raise InputError(f"{key}={value} is less than 1", hint=f"{key}={available}")
        if value is not None and value > available:
            more = f"{option} {value}"
            raise InputError(
                f"{key}={value}, but cluster {cluster.name!r} has {things}: verl would wait for ever",
                hint=f"{key}={available}\nOr start a larger cluster: {more}",
            )
    if cluster.gpus_per_node < 1:
        raise InputError(
            f"no node of cluster {cluster.name!r} offers a GPU to Ray, and verl places its workers on those",
            hint="A CPU node offers one when it is started with: ray start --num-gpus=1",
        )


def check_replicas(values: Mapping[str, str], cluster: ClusterFacts) -> None:
    """Refuse replicas of the rollout that the GPUs of training cannot be divided into.

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
        room, fitting = nodes * gpus, []
        for key, size in sizes.items():
            most = 1 if key == _OF_ONE_REPLICA[2] else size  # verl has no pipeline in a rollout
            fits = next(each for each in range(most, 0, -1) if room % each == 0)
            room //= fits
            fitting.append(f"{key}={fits}")
        raise InputError(
            f"{settings}: a replica of the rollout takes {replica} GPUs, "
            f"and {shape} cannot be divided into replicas of that size",
            hint=" ".join(fitting),
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
    if nodes is not None and values.get(keys.TRAINER_MODE) == SEPARATE:  # it needs fewer CPUs on the others
        nodes += integer(values.get(f"{keys.ROLLOUT}.nnodes", "0")) or 0
    if not cluster.cpus_per_node or gpus is None or nodes != cluster.gpu_nodes:  # fewer nodes: some have no workers
        return None
    return cluster.gpu_nodes * (cluster.cpus_per_node - CPUS_PER_GPU * gpus - 1)


def check_queue(job: Job, values: Mapping[str, str], cluster: ClusterFacts) -> None:
    """Refuse a cluster whose CPUs are too few for the workers and the storage units of the queue."""
    room, units = queue_room(job, values, cluster), integer(values.get(keys.QUEUE_UNITS, "1"))
    if room is None or units is None or units <= room:
        return
    least = CPUS_PER_GPU * (integer(values.get(keys.GPUS)) or cluster.gpus_per_node) + 2
    more = f"When you start the cluster: --set cpu={least}.."
    if values.get(keys.TRAINER_MODE) not in ASYNC:
        more += f"\nverl's older trainer has no queue: {keys.USE_V1}=False"
    raise InputError(
        f"{cluster.cpus_per_node} CPUs a node are too few for verl, which would wait for ever: it reserves "
        f"{CPUS_PER_GPU} for each GPU, 1 for each storage unit of its queue ({units} in all), and 1 for the queue",
        hint=f"{keys.QUEUE_UNITS}={room}" if room > 0 else more,
    )
