"""The module behind the entry point: makes a process of a CPU job ready, and leaves every other one alone.

verl loads each entry point of the group `verl.plugins` at the end of `import verl` and never calls it
(verl 0.9.1, verl/__init__.py), so importing this module is what does the work.

A process belongs to a CPU job
- in a driver: when its command line ends with `trainer.device=cpu` as the word on that key;
- in the actors of such a job: when VERL_PLATFORM is `cpu`, verl's own way to choose a platform
  (verl/plugin/platform/platform_manager.py), which the driver hands on to them.
In any other process no module of verl is imported, no registry is touched and no attribute changes.
"""

import logging
import os
import pkgutil
import sys
from collections.abc import Mapping, Sequence

PLATFORM = "cpu"
PLATFORM_VARIABLE = "VERL_PLATFORM"

_log = logging.getLogger(__name__)


def is_cpu_job(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the process with this command line and environment belongs to a CPU job.

    Args:
        arguments: The command line; Hydra takes the last word on a key.
        environ: The environment. VERL_PLATFORM, when it is set, decides alone, as it does in verl.
    """
    chosen = environ.get(PLATFORM_VARIABLE, "").strip().lower()
    if chosen:
        return chosen == PLATFORM
    words = [text.lstrip("+").split("=", 1) for text in arguments]
    devices = [word[1].strip("\"' ") for word in words if len(word) == 2 and word[0] == "trainer.device"]
    return bool(devices) and devices[-1] == "cpu"


def tested_verl() -> str:
    """The default release of verl: the first row of `verl/releases.yml`, which travels with the plug-in."""
    table = (pkgutil.get_data("cloudrl", "verl/releases.yml") or b"").decode()
    return table.partition("\n- verl: ")[2].partition("\n")[0]


def register() -> None:
    """Register the CPU platform and the rollout `hf` with verl, and hand the platform on to the job's actors.

    The training engines are not registered here: importing them takes seconds, and only training workers
    need them (see `platform.CpuPlatform.communication_backend_name`).
    """
    import verl
    from verl.plugin.platform import PlatformRegistry, set_platform
    from verl.workers.rollout import base, replica

    from cloudrl.verl_cpu.platform import CpuPlatform

    if verl.__version__ != tested_verl():
        _log.warning("cloudrl.verl_cpu is tested with verl %s; this is %s", tested_verl(), verl.__version__)
    PlatformRegistry.register(platform=PLATFORM)(CpuPlatform)
    set_platform(CpuPlatform())
    replica.RolloutReplicaRegistry.register("hf", _load_replica)
    # verl has no public way to add a worker-side adapter: verl/workers/rollout/base.py looks names up in this
    # dict only. The key is new, so nothing of verl's own is replaced.
    base._ROLLOUT_REGISTRY[("hf", "async")] = "cloudrl.verl_cpu.rollout.HfWorkerAdapter"  # noqa: SLF001
    _hand_on_platform()


def _hand_on_platform() -> None:
    """Put VERL_PLATFORM into the environment that verl gives to its Ray actors.

    A driver knows of `trainer.device=cpu` from its command line; its actors have no such line. verl merges
    this dict into the runtime environment (verl/trainer/constants_ppo.py, get_ppo_ray_runtime_env), except
    for what the driver's own environment already has: in a Ray job that already reaches the actors.
    """
    from verl.trainer.constants_ppo import PPO_RAY_RUNTIME_ENV

    PPO_RAY_RUNTIME_ENV["env_vars"][PLATFORM_VARIABLE] = PLATFORM


def _load_replica() -> type:
    from cloudrl.verl_cpu.rollout import HfReplica

    return HfReplica


def _register_if_cpu_job() -> None:
    if not is_cpu_job(sys.argv[1:], os.environ):
        return
    try:
        register()
    except ImportError:
        # verl reports a plug-in that fails at debug level only, and then goes on to look for a GPU.
        _log.exception("cloudrl.verl_cpu cannot be used with this verl; it is tested with %s", tested_verl())
        raise


_register_if_cpu_job()
