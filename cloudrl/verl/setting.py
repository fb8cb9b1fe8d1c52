"""A composed configuration of verl 0.9.1 with what its rules are about: GPUs, roles that are trained, parallelism."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cloudrl.protocol.folders import SAVE_CALLBACK
from cloudrl.verl import keys
from cloudrl.verl.keys import ACTOR, CRITIC, MODEL, REF, ROLLOUT
from cloudrl.verl.source.shapes import Source

BATCH, MODE = "data.train_batch_size", keys.TRAINER_MODE
SAMPLER = "trainer.v1.sampler.custom_sampler.path"
_FSDP = ("fsdp", "fsdp2")
_CODE = (
    f"{MODEL}.external_lib", f"{MODEL}.trust_remote_code", "critic.model.external_lib", "data.custom_cls.path",
    "data.trust_remote_code", SAMPLER, keys.CALLBACK, "reward.reward_manager.module.path",
    f"{ROLLOUT}.agent.agent_loop_manager_class", f"{ROLLOUT}.agent.agent_loop_config_path",
    f"{ROLLOUT}.checkpoint_engine.custom_backend_module", f"{ROLLOUT}.checkpoint_manager_class",
    f"{ROLLOUT}.multi_turn.tool_config_path", f"{ROLLOUT}.multi_turn.function_tool_path",
    f"{ROLLOUT}.router_config_path",
)  # fmt: skip
"""Keys by which verl imports code of the user's, in the driver or in workers."""
_USUAL = {f"{ACTOR}.optim.optimizer_impl": "torch.optim", "critic.optim.optimizer_impl": "torch.optim"}
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,[^}]*)?\}")
_OUR_OWN = ("pkg://cloudrl.verl_cpu.", SAVE_CALLBACK)


@dataclass(frozen=True)
class Setting:
    """A configuration, and the cluster that it is for.

    Attributes:
        values: as `composition.compose` gives them.
        cluster_gpus: of all nodes together.
        base: the same without overrides.
        source: what the release's source says; None if it has not been read.
        is_read: whether the rules were read in that release.
        has_own_code: whether code of the user's is loaded that no key of the configuration names.
    """

    values: Mapping[str, Any]
    cluster_gpus: int
    has_own_code: bool = False
    base: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None
    is_read: bool = True

    def get(self, key: str) -> Any:
        """The value of a dotted key; None if absent."""
        value: Any = self.values
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def whole(self, key: str) -> int | None:
        """A whole number; None for anything else."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def has(self, key: str) -> bool:
        """Whether there is such a key, maybe without a value."""
        parent, _, name = key.rpartition(".")
        section = self.get(parent)
        return isinstance(section, Mapping) and name in section

    def names(self, registry: str) -> tuple[str, ...]:
        """What verl has registered by itself; nothing if this is not known."""
        return self.source.names.get(registry, ()) if self.source is not None else ()

    def default(self, key: str) -> Any:
        """The value of a key without overrides; None if it is absent, a section or a reference."""
        value: Any = self.base
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return None if isinstance(value, Mapping) or "${" in str(value) else value

    def follows(self, key: str) -> bool:
        """Whether the value is that of another key, by a reference in verl's own YAML."""
        value: Any = self.base
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        return found is not None and self.has(found[1]) and self.get(found[1]) == self.get(key)

    @cached_property
    def gpus_per_node(self) -> int:
        """That training takes of a node; at least 1."""
        return max(1, self.whole(keys.GPUS) or 1)

    @cached_property
    def world_size(self) -> int:
        """GPUs of training."""
        return self.gpus_per_node * max(1, self.whole(keys.NODES) or 1)

    @cached_property
    def rollout_n(self) -> int:
        """Answers to each prompt."""
        return self.whole(f"{ROLLOUT}.n") or 1

    @cached_property
    def is_v1(self) -> bool:
        """Whether the default trainer runs, and not the older one."""
        return bool(self.get(keys.USE_V1))

    @cached_property
    def trains(self) -> bool:
        """Whether there is more than one validation (trainer/ppo/v1/trainer_base.py: fit)."""
        never = any(count is not None and count < 1 for count in map(self.whole, (keys.EPOCHS, keys.STEPS)))
        return not (never or (self.get("trainer.val_only") and self.get("trainer.val_before_train") is not False))

    @cached_property
    def uses_reference(self) -> bool:
        """trainer/ppo/utils.py: need_reference_policy."""
        return bool(self.get("algorithm.use_kl_in_reward")) or bool(self.get(f"{ACTOR}.use_kl_loss"))

    @cached_property
    def lora_rank(self) -> int:
        """utils/config.py: validate_config."""
        rank = self.whole(f"{MODEL}.lora.rank") or 0
        return rank if rank > 0 else self.whole(f"{MODEL}.lora_rank") or 0

    @cached_property
    def reference_is_actor(self) -> bool:
        """Whether the actor without its adapter is the reference (trainer/ppo/v1/trainer_base.py: ref_in_actor)."""
        return self.lora_rank > 0 or self.get(f"{MODEL}.lora_adapter_path") is not None

    @cached_property
    def uses_critic(self) -> bool:
        """trainer/ppo/utils.py: need_critic."""
        enabled = self.get(keys.USES_CRITIC)
        return self.get(keys.ESTIMATOR) == "gae" if enabled is None else bool(enabled)

    @cached_property
    def brings_code(self) -> bool:
        """Whether code of the user's is loaded, which may register names that verl does not have."""
        named = [self.get(key) for key in _CODE]
        runtime_env = self.get("ray_kwargs.ray_init.runtime_env")
        named += runtime_env.values() if isinstance(runtime_env, Mapping) else ()
        named += [None if self.get(key) in (usual, None) else key for key, usual in _USUAL.items()]
        named += [None if str(self.get(f"{role}._target_")).startswith("verl.") else role for role in (ACTOR, ROLLOUT)]
        return self.has_own_code or any(each and not str(each).startswith(_OUR_OWN) for each in named)

    @property
    def trained(self) -> tuple[str, ...]:
        """The roles that are; the actor may have to wait for its critic (trainer/ppo/v1/trainer_base.py: step)."""
        roles = (CRITIC,) if self.uses_critic else ()
        return roles if self.uses_critic and self.whole("trainer.critic_warmup") else (ACTOR, *roles)

    @property
    def ever_trained(self) -> tuple[str, ...]:
        """The roles that are trained in some step of the run."""
        critic = (CRITIC,) if self.uses_critic else ()
        warmup, steps = self.whole("trainer.critic_warmup") or 0, self.whole(keys.STEPS)
        return critic if steps is not None and warmup > steps else (ACTOR, *critic)

    @property
    def computes_log_probs(self) -> bool:
        """Whether the actor computes log probabilities beside its update (trainer_base.py: _compute_old_log_prob)."""
        in_actor = self.uses_reference and self.reference_is_actor
        return self.trains and (in_actor or not self.get("algorithm.rollout_correction.bypass_mode"))

    @property
    def counts_generated(self) -> bool:
        """Whether `data.gen_batch_size` is read (trainer/ppo/v1/trainer_base.py: _init_dataloader)."""
        refills = self.get("algorithm.filter_groups.enable") or self.get("trainer.v1.sampler.sync_refill_failed_groups")
        return self.is_v1 and self.get(MODE) == "sync" and not refills

    @property
    def built_first(self) -> str:
        """The role whose engine is built first in a process (trainer/ppo/v1/trainer_base.py: _setup)."""
        return CRITIC if self.uses_critic else REF if REF in self.built else ACTOR

    @property
    def built(self) -> tuple[str, ...]:
        """The roles that have an engine."""
        has_reference = self.uses_reference and not self.reference_is_actor
        return (ACTOR, *((REF,) if has_reference else ()), *((CRITIC,) if self.uses_critic else ()))

    @cached_property
    def replica(self) -> int:
        """GPUs of one replica of the rollout (workers/rollout/replica.py)."""
        sizes = ("tensor_model", "data", "pipeline_model")
        return math.prod(max(1, self.whole(f"{ROLLOUT}.{size}_parallel_size") or 1) for size in sizes)

    @property
    def rollout_gpus_per_node(self) -> int:
        """GPUs of a node that a replica of the rollout may have."""
        return max(1, self.whole(f"{ROLLOUT}.n_gpus_per_node") or self.gpus_per_node)

    @property
    def rollout_pool(self) -> int:
        """GPUs of nodes that only generate; 0 where the rollout shares the GPUs of training."""
        is_separate = self.is_v1 and self.get(MODE) == "separate_async"
        return (self.whole(f"{ROLLOUT}.nnodes") or 0) * self.rollout_gpus_per_node if is_separate else 0

    def is_fsdp(self, role: str) -> bool:
        """Whether FSDP trains, or runs, a role."""
        return self.get(f"{role}.strategy") in _FSDP

    def sequence_parallel(self, role: str) -> tuple[str, int]:
        """The key that counts, and its value: the actor's old one where it is above 1 (workers/config/actor.py)."""
        new = f"{role}.{'fsdp' if role == CRITIC else 'fsdp_config'}.ulysses_sequence_parallel_size"
        old = f"{role}.ulysses_sequence_parallel_size"
        value = self.get(old)
        counts = role != CRITIC and isinstance(value, (int, float)) and value > 1
        key = old if counts else new
        return key, self.whole(key) or 1

    def megatron_parallel(self, role: str) -> int:
        """GPUs that share one copy of the model and one sequence, with Megatron."""
        sizes = ("tensor_model", "pipeline_model", "context")
        return math.prod(self.whole(f"{role}.megatron.{size}_parallel_size") or 1 for size in sizes)

    def data_parallel(self, role: str) -> int | None:
        """Over how many ranks a batch of a role is divided; None where this is not known."""
        if self.is_fsdp(role):
            shared = self.sequence_parallel(role)[1]
        elif self.get(f"{role}.strategy") == "megatron":
            shared = self.megatron_parallel(role)
            # engines of one process share what was set up first (workers/engine/megatron/transformer_impl.py)
            is_alike = all(self.megatron_parallel(each) == shared for each in self.built)
            if not is_alike or self.get(f"{role}.megatron.dynamic_context_parallel"):
                return None
        else:
            return None
        return self.world_size // shared if self.world_size % shared == 0 else None


def applied(setting: Setting, change: Mapping[str, Any]) -> Setting:
    """The same configuration with other values of keys that there are; with more nodes on a cluster that has them."""
    values: dict[str, Any] = dict(setting.values)
    for key, value in change.items():
        *sections, name = key.split(".")
        at = values
        for section in sections:
            at[section] = dict(at.get(section) or {})
            at = at[section]
        at[name] = value
    more = change.get(keys.NODES)
    gpus = max(setting.cluster_gpus, (more or 0) * setting.gpus_per_node + setting.rollout_pool)
    return replace(setting, values=values, cluster_gpus=gpus)
