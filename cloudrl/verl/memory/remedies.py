"""Overrides that make a job fit: tried in the order of what they cost, kept only where they help.

A change that verl or the model would refuse is not taken, so that what is suggested can be applied as it is.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cloudrl.verl import keys
from cloudrl.verl.keys import ACTOR, CRITIC, MODEL, REF, ROLLOUT
from cloudrl.verl.memory.amount import GIB, Phase
from cloudrl.verl.memory.host import NODE_MEMORY
from cloudrl.verl.memory.reading import NotModelled, engine_section, workload_of
from cloudrl.verl.memory.rollout import ENGINE_MEMORY
from cloudrl.verl.memory.verdict import Estimate
from cloudrl.verl.memory.workload import Lengths, Machine, MicroBatch, Trainee, Workload
from cloudrl.verl.rules import problems
from cloudrl.verl.setting import Setting, applied

_MOST_CHANGES = 16
_WORTH_GIB = 0.05
MOST_NODES = 128
"""More nodes are not suggested."""
_MOST_SIZES = 5
"""Of micro-batches that are tried in one step."""
_LEAST_SHARE, _MOST_SHARE, _SHARE_STEP = 0.3, 0.9, 0.1
_USED_OF_NODE = 0.9
"""The part of a node's memory that a job should need at most."""
_CHECKPOINTS = 2.2
"""verl removes an old checkpoint after the new one is written."""
BF16 = 2
"""Bytes of a number."""
_RECOMPUTE = "override_transformer_config.recompute"

Change = dict[str, Any]
Refuses = Callable[[Setting], int]
"""How many reasons speak against a configuration."""
Reads = Callable[[Setting, Lengths | None], Workload]
"""The workload of a configuration; raises `NotModelled`."""
Suggests = Callable[[Setting, Estimate, Phase], Iterator[Change]]
"""What may help the phase that has the least room, the cheapest first."""


@dataclass(frozen=True)
class Remedy:
    """What makes a job fit.

    Attributes:
        overrides: in verl's keys.
        options: of the cluster, as they are typed: `--nodes 2`.
        setting: the configuration with the overrides.
        estimate: what the job needs then.
    """

    overrides: Mapping[str, Any]
    options: tuple[str, ...]
    setting: Setting
    estimate: Estimate

    @property
    def words(self) -> tuple[str, ...]:
        """As they are typed behind the command."""
        return (*self.options, *(f"{key}={value}" for key, value in self.overrides.items()))


def _count_problems(setting: Setting) -> int:
    return len(problems(setting))


def find_remedy(
    setting: Setting,
    estimate: Estimate,
    *,
    refuses: Refuses = _count_problems,
    reads: Reads = workload_of,
    suggests: Suggests | None = None,
) -> Remedy | None:
    """Overrides with which the job likely fits; None if none of those that are known help.

    Args:
        setting: the configuration.
        estimate: what it needs.
        refuses: counts what speaks against a configuration; a change that adds to it is not taken.
        reads: makes a workload of a configuration.
        suggests: what to try; None for the keys of `main_ppo`.
    """
    search = _Search(setting, estimate, refuses, refuses(setting), reads, suggests or _changes)
    machine, options = _larger_node(estimate)
    search = replace(search, estimate=replace(estimate, machine=machine))
    found = search.run()
    if found is None:
        return None
    changes = search.needed(found)
    overrides = {key: value for change in changes for key, value in change.items()}
    changed = search.setting_with(changes)
    nodes, before = (max(each.cluster_gpus, each.world_size) // each.gpus_per_node for each in (changed, setting))
    if overrides.get(keys.NODES) == nodes > before:  # the cluster has as many as train, and gives the number
        overrides.pop(keys.NODES)
    options = (*((f"--nodes {nodes}",) if nodes > before else ()), *options)
    return Remedy(overrides, options, changed, search.estimate_of(changed) or estimate)


def _larger_node(estimate: Estimate) -> tuple[Machine, tuple[str, ...]]:
    """A machine whose host memory and disk are no obstacle, and the options by which a cluster gets it."""
    machine, options = estimate.machine, list[str]()
    for phase in estimate.phases:
        if phase.group == "host" and phase.moment == NODE_MEMORY and not phase.likely_fits:
            machine = replace(machine, host_gib=phase.need.likely / _USED_OF_NODE)
            options.append(f"--set memory={_gigabytes(phase.need.likely / _USED_OF_NODE)}GB..")
        if phase.group == "disk" and not phase.likely_fits:
            machine = replace(machine, disk_gib=_CHECKPOINTS * phase.need.likely)
            options.append(f"--set disk={_gigabytes(_CHECKPOINTS * phase.need.likely)}GB..")
    return machine, tuple(options)


def _gigabytes(gib: float) -> int:
    return math.ceil(gib * GIB / 1e9 / 10) * 10


@dataclass(frozen=True)
class _Search:
    """For changes of a configuration that make it fit."""

    setting: Setting
    estimate: Estimate
    refuses: Refuses
    allowed: int
    reads: Reads
    suggests: Suggests

    def run(self) -> list[Change] | None:
        """Changes, one after the other, each of which helps the phase that has the least room."""
        setting, estimate, taken = self.setting, self.estimate, list[Change]()
        for _ in range(_MOST_CHANGES):
            if estimate.likely_fits:
                return taken
            worst = min(estimate.phases, key=lambda phase: phase.room)
            for change in self.suggests(setting, estimate, worst):
                changed = applied(setting, change)
                found = self.estimate_of(changed)
                helps = found is not None and _helps(estimate, found, worst)
                if helps and found is not None and self.refuses(changed) <= self.allowed:
                    setting, estimate = changed, found
                    taken.append(change)
                    break
            else:
                return None
        return None

    def needed(self, changes: list[Change]) -> list[Change]:
        """Those without which it would not fit."""
        for change in list(changes):
            others = [each for each in changes if each is not change]
            setting = self.setting_with(others)
            found = self.estimate_of(setting)
            if found is not None and found.likely_fits and self.refuses(setting) <= self.allowed:
                changes = others
        return changes

    def setting_with(self, changes: list[Change]) -> Setting:
        """The configuration with all of them."""
        return functools.reduce(applied, changes, self.setting)

    def estimate_of(self, setting: Setting) -> Estimate | None:
        """What another configuration needs on the same machine."""
        try:
            return replace(self.estimate, work=self.reads(setting, self.estimate.work.lengths))
        except NotModelled:
            return None


def _helps(before: Estimate, after: Estimate, worst: Phase) -> bool:
    """Whether the phase has more room, and all phases together are missing less."""
    same = [phase for phase in after.phases if (phase.group, phase.moment) == (worst.group, worst.moment)]
    has_more_room = all(phase.room > worst.room + _WORTH_GIB for phase in same)
    return has_more_room and _missing(after) < _missing(before) - _WORTH_GIB


def _missing(estimate: Estimate) -> float:
    """GiB that are likely missing, over all phases."""
    return -sum(min(0.0, phase.room) for phase in estimate.phases if math.isfinite(phase.room))


def _changes(setting: Setting, estimate: Estimate, worst: Phase) -> Iterator[Change]:
    """What may help a phase, the cheapest first."""
    work = estimate.work
    if worst.group in ("update", "log-probs"):
        yield from _smaller_batches(setting, estimate, worst)
    if worst.group == "rollout" and worst.moment == ENGINE_MEMORY:
        yield from _larger_engine(setting)
    if worst.group == "rollout" or work.critic is not None or worst.group in ("log-probs", "save"):
        yield from _offload(setting, work.critic is not None)
    if worst.group == "rollout" and work.engine is not None:
        yield from _smaller_engine(setting)
    yield from _other_sharding(setting, work.actor)
    if work.critic is not None and setting.is_fsdp(CRITIC) and not work.critic.steps_on_cpu:
        yield {f"{CRITIC}.strategy": "fsdp2", f"{CRITIC}.fsdp.offload_policy": True}
    if work.nodes * 2 <= MOST_NODES:
        yield {keys.NODES: work.nodes * 2}


def _smaller_batches(setting: Setting, estimate: Estimate, worst: Phase) -> Iterator[Change]:
    work = estimate.work
    is_critic, is_log_prob = "critic" in worst.moment, worst.group == "log-probs"
    trainee = work.critic if is_critic and work.critic else work.actor
    role = CRITIC if is_critic else ROLLOUT if is_log_prob else ACTOR
    prefix = "log_prob" if is_log_prob else "ppo"
    batch = trainee.log_probs if is_log_prob else trainee.update
    if not trainee.checkpoints and not is_log_prob:
        yield _recomputed(setting, role)
    longest = math.ceil(work.lengths.longest / trainee.split)
    if batch.tokens is not None and batch.tokens > longest:
        yield _following(setting, f"{role}.{prefix}_max_token_len_per_gpu", max(batch.tokens // 2, longest))
    elif batch.tokens is None:
        rows = max(1, (work.batch_rows if is_log_prob else trainee.rows_per_update) // trainee.replicas)
        for size in smaller_sizes(batch, rows):
            yield {f"{role}.{prefix}_micro_batch_size_per_gpu": size}
    if not is_critic and not trainee.fuses_head and not trainee.is_megatron:
        yield {f"{MODEL}.use_fused_kernels": True}
    if setting.is_fsdp(ACTOR if is_log_prob else role) and trainee.removes_padding:
        key, size = setting.sequence_parallel(ACTOR if is_log_prob else role)
        yield {key: size * 2}
    if trainee.is_megatron and not is_critic:
        yield from _more_tensor_parallel(setting, trainee)


def smaller_sizes(batch: MicroBatch, rows: int) -> Iterator[int]:
    """Rows of a smaller micro-batch that divide those of a GPU, the largest first."""
    sizes = (size for size in range(batch.rows // 2, 0, -1) if rows % size == 0)
    return itertools.islice(sizes, _MOST_SIZES)


def _recomputed(setting: Setting, role: str) -> Change:
    """Gradient checkpointing, by the name that the engine has for it."""
    if setting.is_fsdp(role):
        return {f"{'critic.model' if role == CRITIC else MODEL}.enable_gradient_checkpointing": True}
    start = f"{role}.megatron.{_RECOMPUTE}"
    return {f"{start}_granularity": "full", f"{start}_method": "uniform", f"{start}_num_layers": 1}


def _following(setting: Setting, key: str, value: int) -> Change:
    """The change of a limit of tokens, and of those that follow the actor's where they have its value."""
    change: Change = {key: value}
    for role in (ROLLOUT, REF):
        follower = f"{role}.log_prob_max_token_len_per_gpu"
        if key.startswith(f"{ACTOR}.") and setting.get(follower) == setting.get(key):
            change[follower] = value
    return change


def _more_tensor_parallel(setting: Setting, trainee: Trainee) -> Iterator[Change]:
    """All roles share the groups of one process."""
    roles = [role for role in setting.built if setting.get(f"{role}.strategy") == "megatron"]
    if trainee.tensor < setting.gpus_per_node:
        yield {f"{role}.megatron.tensor_model_parallel_size": trainee.tensor * 2 for role in roles}


def _offload(setting: Setting, has_critic: bool) -> Iterator[Change]:
    """What training keeps on the GPU while others compute: optimizer first, then weights."""
    for role in (ACTOR, CRITIC) if has_critic else (ACTOR,):
        section = engine_section(setting, role)
        for name in ("optimizer_offload", "param_offload"):
            if not setting.get(f"{section}.{name}"):
                yield {f"{section}.{name}": True}
    for role in setting.built:
        if role == REF and setting.get(f"{REF}.strategy") == "megatron":
            yield {f"{REF}.megatron.param_offload": True}


def _smaller_engine(setting: Setting) -> Iterator[Change]:
    key = f"{ROLLOUT}.gpu_memory_utilization"
    share = setting.get(key)
    if isinstance(share, float) and share > _LEAST_SHARE:
        yield {key: round(share - _SHARE_STEP, 2)}
    size = setting.whole(f"{ROLLOUT}.tensor_model_parallel_size") or 1
    if size * 2 <= setting.gpus_per_node:
        yield {f"{ROLLOUT}.tensor_model_parallel_size": size * 2}


def _larger_engine(setting: Setting) -> Iterator[Change]:
    size, key = setting.whole(f"{ROLLOUT}.tensor_model_parallel_size") or 1, f"{ROLLOUT}.gpu_memory_utilization"
    if size * 2 <= setting.gpus_per_node:
        yield {f"{ROLLOUT}.tensor_model_parallel_size": size * 2}
    share = setting.get(key)
    if isinstance(share, float) and share < _MOST_SHARE:
        yield {key: round(share + _SHARE_STEP, 2)}


def _other_sharding(setting: Setting, actor: Trainee) -> Iterator[Change]:
    """States over all GPUs, or in host memory."""
    if not setting.is_fsdp(ACTOR):
        yield from _more_tensor_parallel(setting, actor)
        return
    section = engine_section(setting, ACTOR)
    if actor.shard < actor.world:
        yield {f"{section}.fsdp_size": -1}
    if actor.lora_rank and actor.weight_bytes > BF16:  # the base model is frozen, so its precision does not matter
        yield {f"{section}.model_dtype": "bfloat16"}
    elif not actor.steps_on_cpu and not actor.lora_rank:
        yield {f"{ACTOR}.strategy": "fsdp2", f"{REF}.strategy": "fsdp2", f"{section}.offload_policy": True}
