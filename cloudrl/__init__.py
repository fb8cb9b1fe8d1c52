"""cloudrl: an RL post-training run (verl on Ray) from a laptop to whatever GPUs there are, and home again.

    cluster = cloudrl.Cluster(name="demo", nodes=2)
    with cluster.up(on="local") as ray:
        job = ray.submit(cloudrl.recipe("grpo-tiny"))
        for event in job.follow():
            print(event)

Names are imported when they are first used: `import cloudrl` itself costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudrl.errors import CapacityError as CapacityError
    from cloudrl.errors import CheckpointError as CheckpointError
    from cloudrl.errors import CloudrlError as CloudrlError
    from cloudrl.errors import ClusterFailed as ClusterFailed
    from cloudrl.errors import ConnectionFailed as ConnectionFailed
    from cloudrl.errors import FailedError as FailedError
    from cloudrl.errors import InputError as InputError
    from cloudrl.errors import Interrupted as Interrupted
    from cloudrl.errors import JobFailed as JobFailed
    from cloudrl.errors import SpecError as SpecError
    from cloudrl.errors import Unauthorized as Unauthorized
    from cloudrl.errors import WaitTimeout as WaitTimeout
    from cloudrl.sdk import Artifact as Artifact
    from cloudrl.sdk import Cluster as Cluster
    from cloudrl.sdk import DataSet as DataSet
    from cloudrl.sdk import Fleet as Fleet
    from cloudrl.sdk import Job as Job
    from cloudrl.sdk import NetworkVolume as NetworkVolume
    from cloudrl.sdk import Notice as Notice
    from cloudrl.sdk import ProgressLines as ProgressLines
    from cloudrl.sdk import Question as Question
    from cloudrl.sdk import RewardTest as RewardTest
    from cloudrl.sdk import Run as Run
    from cloudrl.sdk import RunningCluster as RunningCluster
    from cloudrl.sdk import Search as Search
    from cloudrl.sdk import Service as Service
    from cloudrl.sdk import Transfer as Transfer
    from cloudrl.sdk import Volume as Volume
    from cloudrl.sdk import attach as attach
    from cloudrl.sdk import check as check
    from cloudrl.sdk import connect as connect
    from cloudrl.sdk import import_script as import_script
    from cloudrl.sdk import recipe as recipe
    from cloudrl.sdk import reward_test as reward_test
    from cloudrl.sdk import run as run

__version__ = "0.1.0"

__all__ = [
    "Artifact",
    "CapacityError",
    "CheckpointError",
    "CloudrlError",
    "Cluster",
    "ClusterFailed",
    "ConnectionFailed",
    "DataSet",
    "FailedError",
    "Fleet",
    "InputError",
    "Interrupted",
    "Job",
    "JobFailed",
    "NetworkVolume",
    "Notice",
    "ProgressLines",
    "Question",
    "RewardTest",
    "Run",
    "RunningCluster",
    "Search",
    "Service",
    "SpecError",
    "Transfer",
    "Unauthorized",
    "Volume",
    "WaitTimeout",
    "__version__",
    "attach",
    "check",
    "connect",
    "import_script",
    "recipe",
    "reward_test",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in ("cloudrl.errors", "cloudrl.sdk"):
            if hasattr(module := import_module(home), name):
                return getattr(module, name)
    raise AttributeError(f"module 'cloudrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
