"""What a job needs to know of the cluster it goes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ClusterShape:
    """A cluster as one look found it, or as its declaration says that it will be.

    Attributes:
        nodes: how many nodes it has.
        gpus_per_node: GPUs of each node; with device "cpu" these are slots that Ray only counts.
        device: "gpu" or "cpu"; None for a plain Ray cluster, which cannot tell slots from GPUs.
        checkpoint_dir: absolute, on every node; None for a plain Ray cluster, which does not say.
        data: data set -> {"train": path, "test": path}, on every node.
        models: model as asked for -> folder on every node, or its name again where the folders differ.
        rollouts: rollout engines in the image; none are known of a plain Ray cluster.
        provider: "local", "dstack" or "slurm"; None for a plain Ray cluster.
        files_dir: where users' files lie on every node, below their addresses; None where no agent takes them.
        secrets_dir: where the secrets of jobs lie on every node; None where no agent takes them.
        ray_version: the release of Ray; None for a plain Ray cluster.
        ray_session: what Ray calls this start of itself; None where no agent says it.
        nodes_are_here: whether its nodes read this machine's own files.
    """

    name: str
    id: str | None
    nodes: int
    gpus_per_node: int
    device: str | None
    checkpoint_dir: str | None = None
    data: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    verl_version: str | None = None
    rollouts: tuple[str, ...] = ()
    provider: str | None = None
    files_dir: str | None = None
    secrets_dir: str | None = None
    ray_version: str | None = None
    ray_session: str | None = None
    nodes_are_here: bool = False
