"""The way to a cluster that stays open after this program has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.providers.registry import locate, provider
from cloudrl.sdk.callbacks import OnProgress, silent
from cloudrl.sdk.cluster import other_port
from cloudrl.sdk.running import attach

if TYPE_CHECKING:
    from cloudrl.sdk.running import RunningCluster


def open_tunnel(name: str, *, on_progress: OnProgress = silent) -> RunningCluster:
    """Forward a cluster's dashboard to this machine, in the background, until it ends or `close_tunnel`.

    Raises:
        InputError: there is no such cluster, or it is over.
        ConnectionFailed: nobody answers.
    """
    cluster = attach(name, keep_open=True)
    for notice in other_port(name, cluster.connection.ray_url):
        on_progress(notice)
    return cluster


def close_tunnel(name: str) -> bool:
    """Close what `open_tunnel` or `up` keeps open; False when there was nothing. The cluster goes on."""
    ref = locate(name)
    return provider(ref.provider).detach(ref.name)
