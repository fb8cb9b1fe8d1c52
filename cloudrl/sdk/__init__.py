"""The Python interface: what `import cloudrl` offers, one file a subject."""

from __future__ import annotations

from cloudrl.sdk.cluster import Cluster
from cloudrl.sdk.fleet import Fleet
from cloudrl.sdk.job_recipe import recipe
from cloudrl.sdk.running import RunningCluster, attach, connect
from cloudrl.sdk.runs import Run, run
from cloudrl.spec import DataSet, Job, NetworkVolume, Volume

__all__ = [
    "Cluster",
    "DataSet",
    "Fleet",
    "Job",
    "NetworkVolume",
    "Run",
    "RunningCluster",
    "Volume",
    "attach",
    "connect",
    "recipe",
    "run",
]
