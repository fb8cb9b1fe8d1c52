"""GPUs of this machine, against those that a cluster asks for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cloudrl.errors import CapacityError, InputError
from cloudrl.node.gpu_tools import ToolWatch
from cloudrl.node.host_info import detect_gpus
from cloudrl.protocol.report import GpuUsage
from cloudrl.spec import Cluster
from cloudrl.spec.gpu import Gpu
from cloudrl.spec.sizes import bounds_gb

_LESS, _MORE = 0.07, 0.03
"""Parts of a card's nominal GB by which what its driver counts in GiB may differ: an L40S of 48 GB has 45.0 GiB with
error correction, an H100 of 80 GB 79.6, a B200 of 180 GB 179.1."""


def gpus_here(cluster: Cluster) -> int:
    """GPUs a node; without GPUs one slot, since verl counts nothing else (verl-project, single_controller/ray).

    Raises:
        CapacityError: this machine has fewer GPUs, or others.
        InputError: several nodes would share them.
    """
    if cluster.device == "cpu":
        return 1
    count = detect_gpus().count
    wanted = (cluster.gpus_per_node or 1) * cluster.nodes
    if wanted > count:
        raise CapacityError(
            f"nodes={cluster.nodes} with gpu={cluster.gpu} need {wanted} GPUs; this machine has {count}",
            hint="Train on the CPU of this machine: --gpu none",
        )
    if cluster.nodes > 1:
        raise InputError("several nodes on one machine would share its GPUs", hint="--nodes 1")
    cards = _cards()
    if other := [card for card in cards if not is_meant(Gpu.parse(cluster.gpu), card)]:
        name, memory = other[0].name or "GPUs", other[0].memory_total_mib
        size = f" with {memory / 1024:.1f} GiB" if memory else ""
        raise CapacityError(
            f"the cluster asks for {cluster.gpu}; this machine has {len(cards)} x {name}{size}",
            hint=f"Take what is here: --gpu {wanted}",
        )
    return wanted


def is_meant(wanted: Gpu, card: GpuUsage) -> bool:
    """Whether a card has one of the names and the memory that are asked for, as far as its driver tells them."""
    is_named = not wanted.name or not card.name or any(_is_called(card.name, name) for name in wanted.name)
    if wanted.memory is None or card.memory_total_mib is None:
        return is_named
    low, high = bounds_gb(wanted.memory)
    has = card.memory_total_mib / 1024
    return is_named and (low is None or has >= low * (1 - _LESS)) and (high is None or has <= high * (1 + _MORE))


def _is_called(card: str, name: str) -> bool:
    """Whether words of the driver's name are the provider's: `RTX4090` of `NVIDIA GeForce RTX 4090`."""
    words = [word for word in re.split(r"[\s_-]+", card.lower()) if word]
    meant = re.sub(r"[\s_-]+", "", name.lower())
    spans = range(len(words))
    return any("".join(words[start : end + 1]) == meant for start in spans for end in spans[start:])


def _cards() -> Sequence[GpuUsage]:
    """What the vendor's tool tells; nothing where it does not answer."""
    watch = ToolWatch(lambda: True)
    watch.look()
    return watch.gpus
