"""What a cluster is and has: made by its agent, or by the plan of a provider, and passed on as it is."""

from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple


@dataclass(frozen=True)
class ClusterFacts:
    """A cluster as its agent sees it, or as its declaration says that it will be.

    A plain Ray cluster, which has no agents, tells its name, nodes and GPUs. All else has its default there.

    Attributes:
        id: the same over retries of one start; "" where it has not been started, or is not known.
        provider: "local", "dstack" or "slurm".
        nodes: how many nodes it has.
        gpu_nodes: how many of them have GPUs; verl uses no others. The head of dstack's node groups may have none.
        gpus_per_node: of each of those, the smallest counts; 0 where a plan leaves the number open. With device "cpu"
            these are slots that Ray only counts.
        cpus_per_node: that Ray counts on each of those, the smallest counts; 0 where it is not known.
        gpu: what GPUs they are, as asked for (`80GB..:8`) or by their name; "" if unknown.
        gpu_memory_mib: memory of one of them, the smallest one, as the vendor's tool says; 0 if unknown.
        memory_bytes, shm_bytes, disk_bytes: of a node, the smallest one: its memory, `/dev/shm`, and what jobs may
            write where checkpoints are saved; 0 if unknown.
        shared_checkpoints: whether all nodes save into one folder, so that its free bytes count once.
        is_one_machine: whether all nodes are on the machine of their user.
        disks_stay: whether the disks of nodes outlive the loss of the cluster, as its provider says.
        max_duration_s: after which the provider ends each start of it; None without such a limit.
        is_started_again: whether it is started again where it ends itself with an error before that.
        unused_network: the fast network of its nodes that NCCL is not going to use; "" without one, and if unknown.
        link_gb_per_s: of the slowest link between nodes, as measured when they were started; 0 where it was not.
        device: "gpu" or "cpu"; "" for a plain Ray cluster, which cannot tell slots from GPUs.
        ray_version: the release of Ray.
        ray_session: what Ray calls this start of itself; None while it is not up.
        verl_version: the release of verl in the Python of jobs.
        rollouts: rollout engines there.
        rollout_versions: their releases, as far as they are known.
        debuggers: what a job can be debugged with on each node, in the order of ranks (`cloudrl.protocol.stops`).
        places_controllers: whether the head has the module that runs verl's controller there (`folders.ON_HEAD`).
        asks_trainers: whether every node has the callback that tells what verl has saved (`folders.SAVE_CALLBACK`).
        places_training: whether that module can also choose the nodes that train (`TRAINING_NODES`).
        divides_nodes: whether the agents carry a durable job through that trains on some of the nodes.
        checkpoint_dir: where jobs save; absolute, on every node.
        files_dir: where files of users are on every node, below their addresses; None where no agent takes them.
        secrets_dir: where the secrets of jobs are; None where a node has no file system in memory.
        data: data set -> {"train": path, "test": path}, on every node.
        models: model as asked for -> folder on every node, or its name again where the folders differ.
        services: names, or ports, of its servers.
        variables: names of those that jobs find on the head, such as secrets that the provider fills in.
    """

    name: str
    id: str
    provider: str
    nodes: int
    gpu_nodes: int = 0
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    gpu: str = ""
    gpu_memory_mib: int = 0
    memory_bytes: int = 0
    shm_bytes: int = 0
    disk_bytes: int = 0
    shared_checkpoints: bool = False
    is_one_machine: bool = False
    disks_stay: bool = False
    max_duration_s: Optional[float] = None
    is_started_again: bool = False
    unused_network: str = ""
    link_gb_per_s: float = 0.0
    device: str = ""
    ray_version: Optional[str] = None
    ray_session: Optional[str] = None
    verl_version: Optional[str] = None
    rollouts: Tuple[str, ...] = ()
    rollout_versions: Dict[str, str] = field(default_factory=dict)
    debuggers: Tuple[Tuple[str, ...], ...] = ()
    places_controllers: bool = False
    asks_trainers: bool = False
    places_training: bool = False
    divides_nodes: bool = False
    checkpoint_dir: str = ""
    files_dir: Optional[str] = None
    secrets_dir: Optional[str] = None
    data: Dict[str, Dict[str, str]] = field(default_factory=dict)
    models: Dict[str, str] = field(default_factory=dict)
    services: Tuple[str, ...] = ()
    variables: Tuple[str, ...] = ()

    @property
    def has_one_disk(self) -> bool:
        """Whether each node finds what any other has saved."""
        return self.shared_checkpoints or self.is_one_machine

    @property
    def has_agents(self) -> bool:
        """Whether our agents run on its nodes; on a plain Ray cluster nothing is prepared."""
        return bool(self.checkpoint_dir)
