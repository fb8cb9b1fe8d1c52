"""What is on a GPU while an engine generates, and while it gets new weights.

Sources: vLLM 0.24 (`gpu_memory_utilization` is a part of the whole GPU), SGLang 0.5 (`mem_fraction_static` a part for
weights and KV cache), verl 0.9.1, workers/engine_workers.py and workers/rollout/; docs/memory.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cloudrl.verl.memory.amount import GIB, Amount, Phase, phase
from cloudrl.verl.memory.training import CONTEXT, Trainer
from cloudrl.verl.memory.workload import Engine
from cloudrl.verl.model_config import ModelConfig

ENGINE_MEMORY = "the engine's own memory"
"""The moment in which the engine divides what it may use."""
_OUTSIDE = {"vllm": Amount(0.3, 1.2, 3.0)}
_OUTSIDE_OTHERS = Amount(0.3, 3.0, 7.0)
"""GiB beyond the share: context, NCCL, graphs; SGLang computes outside it."""
_WHILE_WAKING = Amount(0.5, 1.0, 2.5)
"""GiB of an engine beside its weights, while it gets new ones."""
_WORK_SPACE, _WORK_SPACE_MOST = 0.6, 1.5
"""GiB of activations and graphs that do not grow with the model."""
_BF16, _FP32 = 2, 4
_HEAD = 128
"""Elements of an attention head that a tensor-parallel rank has at least."""


@dataclass(frozen=True)
class Rollout:
    """The engine of the rollout on one GPU, beside the trainer."""

    trainer: Trainer
    engine: Engine

    @property
    def share(self) -> float:
        """GiB that the engine may use."""
        return self.engine.share * self.trainer.machine.card_gib

    @property
    def limit(self) -> Amount:
        """What is there for the engine and what training keeps."""
        machine = self.trainer.machine
        card = Amount.exact(machine.card_gib - machine.taken_gib)
        return card.less(CONTEXT) if self.engine.is_colocated else card

    def phases(self) -> Iterator[Phase]:
        """All moments of the engine."""
        yield self._generating()
        yield self._weights_and_cache()
        if self.engine.is_colocated:
            yield self._new_weights()
        else:
            yield self._weights_leave()
            yield self._weights_arrive()

    def _generating(self) -> Phase:
        kept = self.trainer.kept if self.engine.is_colocated else []
        terms = [
            *kept,
            ("the engine (gpu_memory_utilization)", Amount.exact(self.share)),
            ("the engine, beyond it", _OUTSIDE.get(self.engine.name, _OUTSIDE_OTHERS)),
        ]
        return phase("rollout", "generating", self.limit, terms)

    def _weights_and_cache(self) -> Phase:
        """The engine refuses to start where one sequence has no room in its KV cache."""
        model, engine = self.trainer.model, self.engine
        longest = self.trainer.work.lengths.longest
        if self.engine.name == "vllm":  # without a limit verl gives it the model's own
            longest = model.positions or longest
        longest = engine.max_length or longest
        rows, tokens = min(engine.max_rows, engine.max_tokens), min(engine.max_tokens, 8192)
        passing = tokens * (8 * model.hidden + 4 * model.inner_width / engine.tensor) + rows * model.vocabulary * _FP32
        work = passing / GIB
        cache = 2 * _BF16 * model.kv_width * model.attention_layers * longest / GIB
        ranks = min(engine.tensor, max(1, model.kv_width // _HEAD))
        terms = [
            ("the engine's weights", Amount.exact(engine_weights(model, engine))),
            ("work space", Amount(0.3, work + _WORK_SPACE, 2 * work + _WORK_SPACE_MOST)),
            ("KV cache of one sequence", Amount.exact(cache / ranks)),
        ]
        return phase("rollout", ENGINE_MEMORY, Amount.exact(self.share), terms)

    def _new_weights(self) -> Phase:
        """Weights go to the engine in buckets; its KV cache comes back only after (verl 0.9.1, engine_workers.py)."""
        trainer, actor = self.trainer, self.trainer.work.actor
        states = trainer.actor
        streams = actor.engine == "fsdp2" and not actor.lora_rank and not actor.keeps_weights
        terms = [
            ("the engine's weights", Amount.exact(engine_weights(trainer.model, self.engine))),
            ("bucket of new weights", Amount.exact(self.engine.bucket_gib)),
            ("the largest tensor in full", Amount(states.largest, states.largest, 2 * states.largest)),
            ("the actor's weights", Amount.exact(0.0 if streams else states.weights)),
            ("the actor's optimizer", Amount.exact(trainer.kept_optimizer)),
            ("the critic", Amount.exact(trainer.kept_by_critic)),
            ("the reference model", Amount.exact(trainer.reference)),
            ("the engine, else", _WHILE_WAKING),
        ]
        return phase("rollout", "new weights for the engine", self.limit, terms)

    def _weights_leave(self) -> Phase:
        """GPUs of training send weights to other nodes; every rank has the buckets, also one that sends nothing."""
        trainer, machine = self.trainer, self.trainer.machine
        states = trainer.actor
        terms = [
            ("buckets of new weights", self._buckets),
            ("the largest tensor in full", Amount(states.largest, states.largest, 2 * states.largest)),
            ("the actor's weights", Amount.exact(states.weights)),
            ("the actor's optimizer", Amount.exact(trainer.kept_optimizer)),
            ("the critic", Amount.exact(trainer.kept_by_critic)),
            ("the reference model", Amount.exact(trainer.reference)),
        ]
        limit = Amount.exact(machine.card_gib - machine.taken_gib).less(CONTEXT)
        return phase("update", "new weights for other nodes", limit, terms)

    def _weights_arrive(self) -> Phase:
        """An engine with GPUs of its own keeps its KV cache meanwhile."""
        terms = [
            ("the engine (gpu_memory_utilization)", Amount.exact(self.share)),
            ("the engine, beyond it", _OUTSIDE.get(self.engine.name, _OUTSIDE_OTHERS)),
            ("buckets of new weights", self._buckets),
        ]
        return phase("rollout", "new weights from other nodes", self.limit, terms)

    @property
    def _buckets(self) -> Amount:
        """One is filled while the other is sent (verl 0.9.1, checkpoint_engine/nccl_checkpoint_engine.py: prepare)."""
        return Amount.exact(2 * self.engine.bucket_gib)


def reward_phase(trainer: Trainer, engine: Engine) -> Phase:
    """While a reward model on the same GPUs scores."""
    machine = trainer.machine
    limit = Amount.exact(machine.card_gib - machine.taken_gib).less(CONTEXT)
    terms = [
        *trainer.kept,
        ("the reward model's engine", Amount.exact(engine.share * machine.card_gib)),
        ("the engine, beyond it", _OUTSIDE.get(engine.name, _OUTSIDE_OTHERS)),
    ]
    return phase("rollout", "scoring by the reward model", limit, terms)


def engine_weights(model: ModelConfig, engine: Engine) -> float:
    """GiB of an engine's weights on one GPU."""
    return engine.weight_bytes * model.counts.total / engine.tensor / GIB
