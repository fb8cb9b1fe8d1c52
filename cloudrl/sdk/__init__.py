"""The Python interface: what `import cloudrl` offers, one file a subject. Nothing here prints, asks or exits."""

from typing import TYPE_CHECKING

from cloudrl.lazy_names import lazy_names

if TYPE_CHECKING:
    from cloudrl.sdk.callbacks import Notice as Notice
    from cloudrl.sdk.callbacks import Question as Question
    from cloudrl.sdk.callbacks import Transfer as Transfer
    from cloudrl.sdk.cluster import Cluster as Cluster
    from cloudrl.sdk.importing import import_script as import_script
    from cloudrl.sdk.machines import Fleet as Fleet
    from cloudrl.sdk.machines import NetworkVolume as NetworkVolume
    from cloudrl.sdk.progress_lines import ProgressLines as ProgressLines
    from cloudrl.sdk.rewards import RewardTest as RewardTest
    from cloudrl.sdk.rewards import reward_test as reward_test
    from cloudrl.sdk.running import RunningCluster as RunningCluster
    from cloudrl.sdk.running import attach as attach
    from cloudrl.sdk.running import connect as connect
    from cloudrl.sdk.runs import check as check
    from cloudrl.sdk.runs import run as run
    from cloudrl.sdk.submission import recipe as recipe
    from cloudrl.sdk.training import Run as Run
    from cloudrl.spec import Artifact as Artifact
    from cloudrl.spec import DataSet as DataSet
    from cloudrl.spec import Job as Job
    from cloudrl.spec import Search as Search
    from cloudrl.spec import Service as Service
    from cloudrl.spec import Volume as Volume

__getattr__ = lazy_names(
    __name__,
    {
        "cloudrl.sdk.callbacks": (
            "Notice",
            "Question",
            "Transfer",
        ),
        "cloudrl.sdk.cluster": ("Cluster",),
        "cloudrl.sdk.importing": ("import_script",),
        "cloudrl.sdk.machines": (
            "Fleet",
            "NetworkVolume",
        ),
        "cloudrl.sdk.progress_lines": ("ProgressLines",),
        "cloudrl.sdk.rewards": (
            "RewardTest",
            "reward_test",
        ),
        "cloudrl.sdk.running": (
            "RunningCluster",
            "attach",
            "connect",
        ),
        "cloudrl.sdk.runs": (
            "check",
            "run",
        ),
        "cloudrl.sdk.submission": ("recipe",),
        "cloudrl.sdk.training": ("Run",),
        "cloudrl.spec": (
            "Artifact",
            "DataSet",
            "Job",
            "Search",
            "Service",
            "Volume",
        ),
    },
)
