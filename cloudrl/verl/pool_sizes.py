"""GPUs for each part of a job on one cluster, as overrides that fit together."""

from cloudrl.verl import keys
from cloudrl.verl.async_modes import SEPARATE
from cloudrl.verl.keys import ROLLOUT
from cloudrl.verl.setting import MODE, Setting


def gpus_elsewhere(setting: Setting) -> dict[str, int]:
    """GPUs that training does not share, by the section of the part that has them."""
    is_separate = setting.is_v1 and setting.get(MODE) == SEPARATE
    sections = {
        "reward.reward_model": setting.get("reward.reward_model.enable_resource_pool"),
        "distillation": setting.get("distillation.enabled"),
        ROLLOUT: is_separate or setting.get(f"{ROLLOUT}.disaggregation.enabled"),
    }
    return {
        section: (setting.whole(f"{section}.nnodes") or 0) * (setting.whole(f"{section}.n_gpus_per_node") or 0)
        for section, is_used in sections.items()
        if is_used
    }


def pool_of_its_own(setting: Setting, section: str) -> str:
    """Overrides that give a part GPUs of its own, and training the others; "" where one GPU is all there is.

    Training gives half of its nodes, or of its only node, if it has all of the cluster (verl 0.9.1 is measured with
    as many nodes for the rollout as for training: docs/advance/v1_async_trainer.md).

    Args:
        setting: the configuration.
        section: of the part, which has `nnodes` and `n_gpus_per_node`.
    """
    nodes, gpus = max(1, setting.whole(keys.NODES) or 1), setting.gpus_per_node
    others = sum(gpus for part, gpus in gpus_elsewhere(setting).items() if part != section)
    spare = setting.cluster_gpus - setting.world_size - others
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
