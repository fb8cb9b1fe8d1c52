"""Where nodes keep what they download from the Hub: beside the checkpoints, unless the user says it."""

from collections.abc import Iterable

from cloudrl.protocol.folders import HUB_CACHE
from cloudrl.spec import Cluster
from cloudrl.spec.volume import Mount

CACHE_VARIABLES = frozenset({"HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"})
"""Each of them moves the Hub's cache (huggingface_hub 1.33, constants.py)."""


def home_of(cluster: Cluster) -> str:
    """The usual home of the user in the container."""
    user = (cluster.user or "root").partition(":")[0]
    return "/root" if user in ("root", "0") else f"/home/{user}"


def hub_cache(cluster: Cluster, mounts: Iterable[Mount] | None = None) -> dict[str, str]:
    """HF_HOME on the volume of the checkpoints, where models outlive a restart of the run and nodes may share them.

    Nothing where the user says where the cache is, by a variable or by a volume, or saves into the container.

    Args:
        cluster: as it is declared.
        mounts: of its containers; None for its own.
    """
    all_mounts = tuple(cluster.mounts if mounts is None else mounts)
    names = {*cluster.env, *cluster.secrets}
    usual = f"{home_of(cluster)}/.cache/huggingface"
    is_mounted = any(mount.holds(usual) or "/.cache/huggingface" in mount.path for mount in all_mounts)
    if names & CACHE_VARIABLES or is_mounted or not any(mount.holds(cluster.checkpoints) for mount in all_mounts):
        return {}
    return {"HF_HOME": f"{cluster.checkpoints.rstrip('/')}/{HUB_CACHE}"}
