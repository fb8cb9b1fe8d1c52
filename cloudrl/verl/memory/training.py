"""What is on a GPU while a model is loaded, computes log-probs, is updated and saved.

Bytes of a token are (low, likely, high); where they were measured and how: docs/memory.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cloudrl.verl.memory.amount import NOTHING, Amount, Phase, phase
from cloudrl.verl.memory.states import States, states_of
from cloudrl.verl.memory.workload import Engine, Machine, Trainee, Workload
from cloudrl.verl.model_config import ModelConfig

Terms = list[tuple[str, Amount]]

CONTEXT = Amount(0.6, 1.1, 2.2)
"""GiB of the trainer's CUDA context and NCCL's buffers; from runs that fitted or died."""
ASLEEP = Amount(0.7, 1.5, 3.2)
"""GiB that an engine keeps while it sleeps: context, graphs, NCCL."""
_ASLEEP_OF_SEVERAL = 0.3
"""GiB more where a copy of its weights takes several GPUs."""
_WASTE, _WASTE_OF_STEP = 0.033, 0.02
"""What fragmentation adds; the optimizer's step allocates few large pieces."""

_LOGITS = Amount(2, 2.05, 7)
_COPY = Amount(2, 3.25, 3.25)
_EAGER_ENTROPY = Amount(8, 25, 26)
_LOG_PROBS, _CHUNKED_LOG_PROBS, _EAGER_LOG_PROBS = Amount(2, 2.05, 8), Amount(2, 2.05, 5), Amount(8, 13.5, 15)
_MEGATRON_LOGITS, _MEGATRON_LOG_PROBS = Amount(6, 8, 12), Amount(4, 6, 10)
_TORCH_LOSS = Amount(12, 16, 18)
_SCALED = Amount(0, 2, 2)
"""Bytes of a token and an entry of the vocabulary. `_COPY` is added with entropy in the loss, and without flash-attn's
cross entropy, which overwrites the logits; `_SCALED` where logits are divided by a temperature. `_TORCH_LOSS` is of
verl 0.7.0's fsdp_sft_trainer.py: torch's cross entropy in fp32 of a cut copy of the logits: 14.1 bytes with one row and
16.0 with several, as a CPU's memory grew."""
_FUSED_ROWS, _FUSED_ROW, _FUSED_TOKEN = 512, Amount(0, 12, 16), Amount(4, 8, 12)
"""Fused kernels compute so many rows of logits at once; bytes of their entries, and of a token's hidden state."""
_LORA_CHECKPOINTS = Amount(1, 1.2, 3)
"""Checkpointed activations are so many times larger with LoRA; old releases kept their inputs wider."""
_LAYER_IN_BACKWARD = Amount(0.98, 1.4, 1.82)
"""Activations of one layer with their gradients."""


@dataclass(frozen=True)
class Trainer:
    """The process of training on one GPU, with what it needs to know of the rest.

    Attributes:
        model: of the actor.
        critic_model: of the critic.
        work: the job.
        machine: the GPU.
    """

    model: ModelConfig
    critic_model: ModelConfig
    work: Workload
    machine: Machine

    @property
    def actor(self) -> States:
        """The actor's."""
        return states_of(self.model, self.work.actor)

    @property
    def critic(self) -> States | None:
        """The critic's; None without one."""
        return states_of(self.critic_model, self.work.critic) if self.work.critic else None

    @property
    def limit(self) -> Amount:
        """What the trainer may use while the engines sleep."""
        engine, limit = self.work.engine, Amount.exact(self.machine.card_gib - self.machine.taken_gib).less(CONTEXT)
        for each in (engine, self.work.reward):
            if each is not None and each.is_colocated:
                limit = limit.less(ASLEEP + Amount(0, _ASLEEP_OF_SEVERAL * (each.tensor > 1), 0))
        return limit

    @property
    def kept_optimizer(self) -> float:
        """GiB of the actor's optimizer that stay on the GPU in other phases."""
        return self.actor.optimizer if self.work.actor.keeps_optimizer and not self.work.first_step_only else 0.0

    @property
    def kept_by_critic(self) -> float:
        """GiB of the critic that stay on the GPU in other phases."""
        critic, states = self.work.critic, self.critic
        if critic is None or states is None:
            return 0.0
        return states.weights * critic.keeps_weights + states.optimizer * critic.keeps_optimizer

    @property
    def kept(self) -> Terms:
        """What stays on the GPU while an engine computes."""
        return [
            ("the actor's weights", Amount.exact(self.actor.weights if self.work.actor.keeps_weights else 0.0)),
            ("the actor's optimizer", Amount.exact(self.kept_optimizer)),
            ("the critic", Amount.exact(self.kept_by_critic)),
            ("the reference model", Amount.exact(self.reference)),
        ]

    @property
    def reference(self) -> float:
        """GiB of a reference model that stays on the GPU."""
        return self.actor.weights if self.work.reference == "gpu" else 0.0

    def phases(self) -> Iterator[Phase]:
        """All moments of the trainer."""
        yield self._load()
        yield from self._update()
        if self.work.engine is not None:
            yield self.log_probs()
        if self.work.critic is not None:
            yield from self._critic(self.work.critic)
        if self.work.saves:
            yield self._save()

    def _load(self) -> Phase:
        counts, each = self.model.counts, self.work.actor.weight_bytes
        ends = counts.embedding + (0 if self.work.actor.engine == "fsdp2" else counts.head)
        copies = 2 if self.work.actor.steps_on_cpu else 1
        one = copies * max(*counts.layers, ends) * each
        unit = NOTHING if self.work.actor.is_megatron else Amount.of_bytes(0, one, one)
        weights = Amount.exact(self.actor.weights)
        return phase("load", "model", self.limit, [("weights", weights), ("one layer in full", unit)], _WASTE)

    def _static(self, *, is_step: bool = False) -> Terms:
        """What is there during the whole update."""
        states = self.actor
        accumulated = states.unsharded_gradients if not is_step else 0.0
        has_gradients = is_step or not self.work.actor.has_whole_gradients
        has_optimizer = is_step or not self.work.first_step_only
        return [
            ("weights", Amount.exact(states.weights)),
            ("gradients", Amount.exact(states.gradients if has_gradients else 0.0)),
            ("gradients, unsharded", Amount(accumulated / 2, accumulated, accumulated)),
            ("optimizer states", Amount.exact(states.optimizer if has_optimizer else 0.0)),
            *self._beside(),
        ]

    def _beside(self) -> Terms:
        """What others have on the GPU while the actor computes."""
        engine = self.work.engine
        awake = engine is not None and engine.is_colocated and not engine.sleeps
        return [
            ("the critic", Amount.exact(self.kept_by_critic)),
            ("the reference model", Amount.exact(self.reference)),
            ("the engine, which does not sleep", Amount.exact(_share(engine, self.machine) if awake else 0.0)),
        ]

    def _unsharded(self, extra_layers: int = 0) -> Terms:
        return [
            ("embeddings, unsharded", Amount.exact(self.actor.root)),
            ("layers, unsharded", Amount.exact(self.actor.units + extra_layers * self.actor.layer)),
        ]

    def _update(self) -> Iterator[Phase]:
        actor, limit = self.work.actor, self.limit
        tokens = actor.tokens_at_once(actor.update, actor.rows_per_update, self.work.lengths)
        saved = _saved(self.model, actor, tokens)
        head = ("gradient of the head", Amount.exact(self.actor.head_gradient))
        logits = _logits(self.model, actor, tokens, _update_logits(actor))
        yield phase(
            "update", "forward and logits", limit,
            [*self._static(), *self._unsharded(), *saved, head, *logits],
            _WASTE,
        )  # fmt: skip
        backward = _layer_in_backward(self.model, actor, tokens)
        yield phase(
            "update", "backward of a layer", limit,
            [*self._static(), *self._unsharded(0 if actor.lora_rank else 3), *saved, *backward], _WASTE,
        )  # fmt: skip
        if not actor.is_megatron:
            root = [
                ("embeddings, unsharded", Amount.exact(self.actor.root)),
                ("gradients of the embeddings", Amount.exact(self.actor.root_gradients)),
            ]
            yield phase("update", "gradients of the embeddings", limit, [*self._static(), *root], _WASTE)
        copy = [("the optimizer's temporary copy", Amount.exact(self.actor.step_copy))]
        yield phase("update", "optimizer step", limit, [*self._static(is_step=True), *copy], _WASTE_OF_STEP)

    def log_probs(self) -> Phase:
        """Without gradients; their entropy is always computed (verl 0.9.1, trainer/ppo/ray_trainer.py)."""
        actor = self.work.actor
        tokens = actor.tokens_at_once(actor.log_probs, self.work.batch_rows, self.work.lengths)
        passing = tokens.times(Amount(0, 0.1, 0.8) * _layer_bytes(self.model, actor))
        terms = [
            ("weights", Amount.exact(self.actor.weights)),
            ("optimizer states", Amount.exact(self.kept_optimizer)),
            *self._beside(),
            *self._unsharded(),
            ("activations of a layer", _gib(passing)),
            *_logits(self.model, actor, tokens, _log_prob_logits(actor)),
        ]
        return phase("log-probs", "of the actor", self.limit, terms, _WASTE)

    def _critic(self, critic: Trainee) -> Iterator[Phase]:
        """The critic's update; its head has one output, so there are no logits."""
        states = states_of(self.critic_model, critic)
        every = Amount.exact(states.weights + states.gradients + states.optimizer)
        terms: Terms = [("the critic's weights, gradients and optimizer", every), *self.kept[:2], *self.kept[3:]]
        copy = ("the optimizer's temporary copy", Amount.exact(states.step_copy))
        yield phase("update", "optimizer step of the critic", self.limit, [*terms, copy], _WASTE)
        tokens = critic.tokens_at_once(critic.update, critic.rows_per_update, self.work.lengths)
        terms += [
            ("embeddings, unsharded", Amount.exact(states.root)),
            ("layers, unsharded", Amount.exact(states.units + 3 * states.layer)),
            *_saved(self.critic_model, critic, tokens),
            *_layer_in_backward(self.critic_model, critic, tokens, is_always=True),
        ]
        yield phase("update", "backward of the critic", self.limit, terms, _WASTE)

    def _save(self) -> Phase:
        """Shards are copied to host memory one by one (verl 0.9.1, utils/checkpoint/fsdp_checkpoint_manager.py)."""
        terms = [
            ("weights", Amount.exact(self.actor.weights)),
            ("optimizer states", Amount.exact(self.kept_optimizer)),
            *self._beside(),
            ("the largest tensor in full", Amount(0, self.actor.largest, 2 * self.actor.largest)),
        ]
        return phase("save", "of the actor", self.limit, terms, _WASTE)


def _share(engine: Engine | None, machine: Machine) -> float:
    """GiB that an engine takes of the whole GPU."""
    return engine.share * machine.card_gib if engine is not None else 0.0


def _layer_bytes(model: ModelConfig, trainee: Trainee) -> float:
    """Bytes a token that a layer saves for its backward pass, with bf16 and flash attention (Korthikanti et al.).

    Of a model with several kinds of attention, the layer that saves most.
    """
    attention = max(6 * (model.query_width + model.kv_width), model.linear_bytes)
    return (16 * model.hidden + attention + 8 * model.inner_width) / trainee.tensor


def _saved(model: ModelConfig, trainee: Trainee, tokens: Amount) -> Terms:
    """Activations that wait for the backward pass."""
    if not trainee.checkpoints:
        each = model.layers * _layer_bytes(model, trainee)
        return [("activations (no checkpointing)", _gib(tokens.times(Amount(0.85, 1, 1.1) * each)))]
    if trainee.offloads_activations:
        return []
    factor = _LORA_CHECKPOINTS if trainee.lora_rank and not trainee.is_megatron else Amount(1, 1, 1.3)
    each = 2 * model.layers * model.hidden / trainee.tensor
    return [("checkpointed activations", _gib(tokens.times(factor * each)))]


def _layer_in_backward(model: ModelConfig, trainee: Trainee, tokens: Amount, *, is_always: bool = False) -> Terms:
    """The layer whose activations are computed again."""
    if not (trainee.checkpoints or is_always):
        return []
    return [("activations of a layer", _gib(tokens.times(_LAYER_IN_BACKWARD * _layer_bytes(model, trainee))))]


def _update_logits(actor: Trainee) -> Amount:
    """Bytes of a token and an entry of the vocabulary during the update."""
    if actor.is_megatron:
        return _MEGATRON_LOGITS
    if actor.has_torch_loss:
        return _TORCH_LOSS
    has_entropy = actor.has_entropy and not actor.chunks_entropy
    scaled = _SCALED if actor.scales_logits else NOTHING
    if has_entropy and not (actor.compiles_entropy and actor.removes_padding):
        return _EAGER_ENTROPY + scaled
    return _LOGITS + scaled + (_COPY if has_entropy or actor.lacks_flash_attention else NOTHING)


def _log_prob_logits(actor: Trainee) -> Amount:
    if actor.is_megatron:
        return _MEGATRON_LOG_PROBS
    if actor.chunks_entropy:
        return _CHUNKED_LOG_PROBS
    return _LOG_PROBS if actor.compiles_entropy and actor.removes_padding else _EAGER_LOG_PROBS


def _logits(model: ModelConfig, actor: Trainee, tokens: Amount, each: Amount) -> Terms:
    """Logits and what the loss makes of them; with fused kernels only chunks exist."""
    if not actor.fuses_head:
        return [("logits", _gib(tokens.times(each * (model.vocabulary / actor.tensor))))]
    rows = _FUSED_ROW * (_FUSED_ROWS * model.vocabulary)
    return [("fused head", _gib(tokens.times(_FUSED_TOKEN * model.hidden) + rows))]


def _gib(found: Amount) -> Amount:
    return Amount.of_bytes(found.low, found.likely, found.high)
