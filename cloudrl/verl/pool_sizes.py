"""GPUs for each part of a job on one cluster, as overrides that fit together."""

from cloudrl.verl import keys
from cloudrl.verl.setting import Setting


def pool_of_its_own(setting: Setting, section: str) -> str:
    """Overrides that give a part GPUs of its own, and training the others; "" where one GPU is all there is.

    Training gives half of its nodes, or of its only node, if it has all of the cluster (verl 0.9.1 is measured with
    as many nodes for the rollout as for training: docs/advance/v1_async_trainer.md).

    Args:
        setting: the configuration.
        section: of the part, which has `nnodes` and `n_gpus_per_node`.
    """
    nodes, gpus = max(1, setting.whole(keys.NODES) or 1), setting.gpus_per_node
    spare = setting.cluster_gpus - setting.world_size
    if spare > 0:
        return f"{section}.nnodes={max(1, spare // gpus)} {section}.n_gpus_per_node={min(gpus, spare)}"
    if nodes > 1:
        return f"{keys.NODES}={nodes - nodes // 2} {section}.nnodes={nodes // 2} {section}.n_gpus_per_node={gpus}"
    if gpus > 1:
        return f"{keys.GPUS}={gpus - gpus // 2} {section}.nnodes=1 {section}.n_gpus_per_node={gpus // 2}"
    return ""


def smaller_training(setting: Setting, elsewhere: int) -> str:
    """The override with which training leaves so many GPUs of the cluster to other parts; else the cluster that has."""
    nodes, gpus = max(1, setting.whole(keys.NODES) or 1), setting.gpus_per_node
    left = setting.cluster_gpus - elsewhere
    if left >= gpus and nodes > 1:
        return f"{keys.NODES}={min(nodes, left // gpus)}"
    if nodes == 1 and 0 < left < gpus:
        return f"{keys.GPUS}={left}"
    whole = -(-(setting.world_size + elsewhere) // gpus)
    return f"A cluster of {whole} nodes has room for all: --nodes {whole}"
