"""The Python interface: what `import cloudrl` offers, one file a subject. Nothing here prints, asks or exits."""

from __future__ import annotations

from cloudrl.sdk.callbacks import Notice, Question, Transfer
from cloudrl.sdk.cluster import Cluster
from cloudrl.sdk.fleet import Fleet
from cloudrl.sdk.job_recipe import recipe
from cloudrl.sdk.running import RunningCluster, attach, connect
from cloudrl.sdk.runs import Run, run
from cloudrl.sdk.volume import NetworkVolume
from cloudrl.spec import DataSet, Job, Volume

__all__ = [
    "Cluster",
    "DataSet",
    "Fleet",
    "Job",
    "NetworkVolume",
    "Notice",
    "Question",
    "Run",
    "RunningCluster",
    "Transfer",
    "Volume",
    "attach",
    "connect",
    "recipe",
    "run",
]
