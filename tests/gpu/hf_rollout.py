"""The CPU plug-in's rollout for a job that trains on a GPU, where no engine for GPUs is installed.

For `VERL_USE_EXTERNAL_MODULES`: verl imports it wherever it is imported itself (verl 0.9.1, verl/__init__.py).
"""

from verl.workers.rollout import base, replica

from cloudrl.verl_cpu.plugin import _load_replica

replica.RolloutReplicaRegistry.register("hf", _load_replica)
base._ROLLOUT_REGISTRY[("hf", "async")] = "cloudrl.verl_cpu.rollout.HfWorkerAdapter"
