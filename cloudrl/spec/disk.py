"""How much disk each node of a cluster needs, by the models that it trains."""

import math
import re

from cloudrl.spec.cluster import Cluster

_BASE_GB = 150
"""Image, packages, data and logs; verl's images unpack to some 40 GB."""
_SAVES = 8
"""Checkpoints that lie there at once: verl keeps all unless trainer.max_actor_ckpt_to_keep says otherwise."""
_SAVE_BYTES = 12
"""Of each parameter in a checkpoint of verl 0.9.1 with FSDP: weight and two moments of Adam in float32."""
_WEIGHT_BYTES = 2
_BILLIONS = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)


def disk_for(cluster: Cluster) -> str | None:
    """The disk of each node, such as `700GB..`; None without GPUs, or where no model's name tells its size.

    Each node has the weights of every model, and its share of the checkpoints of the largest.
    """
    sizes = [size for size in map(billions, cluster.models) if size is not None]
    if cluster.device == "cpu" or not sizes:
        return None
    gigabytes = _BASE_GB + _WEIGHT_BYTES * sum(sizes) + _SAVES * _SAVE_BYTES * max(sizes) / cluster.nodes
    return f"{math.ceil(gigabytes / 100) * 100}GB.."


def billions(model: str) -> float | None:
    """Parameters, as a model's name tells them: 7 of `Qwen/Qwen2.5-7B-Instruct`, 56 of `Mixtral-8x7B`, or None."""
    found = _BILLIONS.search(model.rpartition("/")[2])
    return None if found is None else int(found[1] or 1) * float(found[2])
