"""A composed configuration of verl 0.9.1 with what its rules are about: GPUs, roles that are trained, parallelism."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
MODEL, CRITIC = "actor_rollout_ref.model", "critic"


@dataclass(frozen=True)
class Setting:
    """A configuration, and the cluster that it is for.

    Attributes:
        values: as `composition.compose` gives them.
        cluster_gpus: of all nodes together.
    """

    values: Mapping[str, Any]
    cluster_gpus: int

    def get(self, key: str) -> Any:
        """The value of a dotted key; None where there is none."""
        value: Any = self.values
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def whole(self, key: str) -> int | None:
        """A whole number; None for anything else."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @cached_property
    def gpus_per_node(self) -> int:
        """That the job takes of a node; at least 1."""
        return max(1, self.whole("trainer.n_gpus_per_node") or 1)

    @cached_property
    def world_size(self) -> int:
        """GPUs of training."""
        return self.gpus_per_node * max(1, self.whole("trainer.nnodes") or 1)

    @cached_property
    def answers(self) -> int:
        """To each prompt."""
        return self.whole(f"{ROLLOUT}.n") or 1

    @cached_property
    def uses_reference(self) -> bool:
        """trainer/ppo/utils.py: need_reference_policy."""
        return bool(self.get("algorithm.use_kl_in_reward")) or bool(self.get(f"{ACTOR}.use_kl_loss"))

    @cached_property
    def uses_critic(self) -> bool:
        """trainer/ppo/utils.py: need_critic."""
        enabled = self.get("critic.enable")
        return self.get("algorithm.adv_estimator") == "gae" if enabled is None else bool(enabled)

    @cached_property
    def is_v1(self) -> bool:
        """Whether the default trainer runs, and not the older one."""
        return bool(self.get("trainer.use_v1"))

    def sequence_parallel(self, role: str) -> int:
        """workers/config/actor.py and critic.py: the old key counts where it is above 1."""
        engine = "fsdp_config" if role == ACTOR else "fsdp"
        old, new = (self.whole(f"{role}.{each}ulysses_sequence_parallel_size") or 1 for each in ("", f"{engine}."))
        return old if old > 1 else new

    def megatron_parallel(self, role: str) -> int:
        """GPUs that share one copy of the model and one sequence, with Megatron."""
        sizes = ("tensor_model", "pipeline_model", "context")
        return math.prod(self.whole(f"{role}.megatron.{each}_parallel_size") or 1 for each in sizes)

    def data_parallel(self, role: str) -> int | None:
        """Over how many parts a batch of a role is divided; None where this is not known."""
        strategy = self.get(f"{role}.strategy")
        if strategy == "megatron":
            one = self.megatron_parallel(role)
        elif strategy in ("fsdp", "fsdp2"):
            one = self.sequence_parallel(role)
        else:
            return None
        return self.world_size // one if self.world_size % one == 0 else None

    @property
    def trained(self) -> tuple[str, ...]:
        """The roles that are."""
        return (ACTOR, CRITIC) if self.uses_critic else (ACTOR,)
