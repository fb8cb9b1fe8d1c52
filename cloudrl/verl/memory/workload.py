"""What of a job decides memory: how models are sharded, what is offloaded, and how many tokens are computed at once."""

from __future__ import annotations

from dataclasses import dataclass

from cloudrl.verl.memory.amount import Amount

_FEW_ROWS = 2
"""Of so few rows in a micro-batch the longest counts, of more their mean."""
_LONGEST = 3
"""Among the rows of a step, the longest has so many times their mean length; a figure of ours."""


@dataclass(frozen=True)
class Machine:
    """A node and its GPUs.

    Attributes:
        card_gib: usable memory of one GPU.
        host_gib: memory of a node; None if unknown.
        disk_gib: room for checkpoints of all nodes together; None if unknown.
        shm_gib: `/dev/shm` of a node; None if unknown.
        taken_gib: what others have of each GPU.
    """

    card_gib: float
    host_gib: float | None = None
    disk_gib: float | None = None
    shm_gib: float | None = None
    taken_gib: float = 0.0


@dataclass(frozen=True)
class Lengths:
    """How long a sequence, prompt and answer, may be and usually is; in tokens.

    Attributes:
        prompt: the limit of a prompt.
        response: the limit of an answer.
        mean: of a whole sequence; None if unknown.
        prompt_mean: of a prompt, where only that is known.
        source: where the means come from, for messages.
    """

    prompt: int
    response: int
    mean: float | None = None
    prompt_mean: float | None = None
    source: str = ""

    @property
    def longest(self) -> int:
        """Of a whole sequence."""
        return self.prompt + self.response

    @property
    def usual(self) -> Amount:
        """Mean length; without one, half of the limit, and at most the limit."""
        if self.mean is None and self.prompt_mean is not None:
            prompt, answer = self.prompt_mean, self.response
            return Amount(prompt + 0.35 * answer, prompt + 0.5 * answer, min(self.longest, 1.6 * prompt + answer))
        if self.mean is None:
            return Amount(0.35 * self.longest, 0.5 * self.longest, self.longest)
        return Amount(0.7 * self.mean, self.mean, min(self.longest, 1.6 * self.mean))


@dataclass(frozen=True)
class MicroBatch:
    """What a GPU computes at once.

    Attributes:
        rows: sequences, where their number is fixed.
        tokens: tokens, where sequences are packed up to so many; None where the number of rows is fixed.
    """

    rows: int = 1
    tokens: int | None = None


@dataclass(frozen=True)
class Trainee:
    """A model that is trained: the actor or the critic.

    Attributes:
        engine: "fsdp", "fsdp2" or "megatron".
        shard: GPUs that share one copy of the states, with FSDP.
        world: GPUs of training.
        weight_bytes: of a master weight.
        moment_bytes: of both moments of the optimizer together, per parameter.
        keeps_weights, keeps_optimizer: whether they stay on the GPU while other phases run.
        steps_on_cpu: whether FSDP2's policy keeps all states in host memory.
        has_whole_gradients: whether gradients are unsharded while they accumulate (FSDP2 without synchronisation).
        tensor, pipeline, expert, expert_tensor: Megatron's parallelism.
        has_virtual_stages: whether Megatron's pipeline has several stages on a GPU.
        split: GPUs that share one sequence.
        checkpoints: whether activations are computed again in the backward pass.
        offloads_activations: whether checkpointed activations wait in host memory.
        removes_padding: whether rows are packed without padding.
        pads_to_limit: whether each row is padded to the longest that a sequence may be.
        fuses_head: whether logits exist in chunks only.
        chunks_entropy: whether the entropy is computed in chunks.
        compiles_entropy: whether its kernels are fused by torch.compile.
        has_entropy: whether the loss contains the entropy.
        scales_logits: whether logits are divided by a temperature.
        lacks_flash_attention: whether its cross entropy is missing, which makes no copy of the logits.
        has_torch_loss: whether the loss is torch's cross entropy in fp32, which copies the logits.
        lora_rank: 0 without LoRA.
        has_cpu_adam: whether Megatron's optimizer steps in host memory.
        uses_foreach: whether the optimizer makes one more copy of all parameters.
        rows_per_update: sequences of a mini-batch, on all GPUs.
        update, log_probs: micro-batches.
        save: what a checkpoint contains.
    """

    engine: str = "fsdp"
    shard: int = 1
    world: int = 1
    weight_bytes: int = 4
    moment_bytes: int = 8
    keeps_weights: bool = True
    keeps_optimizer: bool = True
    steps_on_cpu: bool = False
    has_whole_gradients: bool = False
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    expert_tensor: int = 1
    has_virtual_stages: bool = False
    split: int = 1
    checkpoints: bool = True
    offloads_activations: bool = False
    removes_padding: bool = True
    pads_to_limit: bool = False
    fuses_head: bool = False
    chunks_entropy: bool = False
    compiles_entropy: bool = True
    has_entropy: bool = False
    scales_logits: bool = False
    lacks_flash_attention: bool = False
    has_torch_loss: bool = False
    lora_rank: int = 0
    has_cpu_adam: bool = False
    uses_foreach: bool = True
    rows_per_update: int = 1
    update: MicroBatch = MicroBatch()
    log_probs: MicroBatch = MicroBatch()
    save: tuple[str, ...] = ("model", "optimizer", "extra")

    @property
    def is_megatron(self) -> bool:
        """Whether Megatron trains it."""
        return self.engine == "megatron"

    @property
    def replicas(self) -> int:
        """Over how many parts a batch is divided."""
        return max(1, self.world // (self.split * self.tensor * self.pipeline))

    def tokens_at_once(self, batch: MicroBatch, rows: int, lengths: Lengths) -> Amount:
        """Tokens of a micro-batch that one GPU computes.

        Args:
            batch: how micro-batches are made.
            rows: sequences that all GPUs compute before the next update.
            lengths: of sequences.
        """
        usual, longest = lengths.usual, lengths.longest
        if batch.tokens is not None:
            # verl 0.9.1, workers/engine/utils.py: the limit times GPUs of a sequence; one row is never cut
            limit, here = max(batch.tokens * self.split, longest), rows / self.replicas
            here = max(here, 1.0)
            found = Amount(*(min(limit, here * each) for each in (usual.low, usual.likely, usual.high)))
        elif self.pads_to_limit:
            found = Amount.exact(longest) * batch.rows
        elif not self.removes_padding:
            found = Amount(usual.likely, longest, longest) * batch.rows
        elif batch.rows <= _FEW_ROWS:
            found = Amount(usual.likely, min(longest, _LONGEST * usual.likely), longest) * batch.rows
        else:
            found = Amount(0.85 * usual.likely, usual.likely, usual.high) * batch.rows
        return found * (1 / self.split)


@dataclass(frozen=True)
class Engine:
    """A server of the rollout, or of a reward model.

    Attributes:
        name: "vllm", "sglang", ...
        tensor: GPUs of a copy of the weights.
        weight_bytes: of a weight.
        share: the part of the GPU's memory that it may use (`gpu_memory_utilization`).
        max_length: the longest sequence, in tokens; None for the limits of prompt and answer.
        max_rows: sequences at once.
        max_tokens: tokens at once.
        sleeps: whether it gives its memory back while others compute.
        is_colocated: whether training uses the same GPUs.
        bucket_gib: new weights that are on their way to it at once.
    """

    name: str = "vllm"
    tensor: int = 1
    weight_bytes: int = 2
    share: float = 0.5
    max_length: int | None = None
    max_rows: int = 256
    max_tokens: int = 8192
    sleeps: bool = True
    is_colocated: bool = True
    bucket_gib: float = 2.0


@dataclass(frozen=True)
class Workload:
    """What a job does with memory.

    Attributes:
        actor, critic: what is trained; a job that tunes supervised has an actor and no engine.
        reference: weights of the reference model, "host", "gpu" or "" without one.
        engine: of the rollout; None without one.
        reward: engine of a reward model on the same GPUs.
        nodes, gpus: of training: nodes, and GPUs of each.
        batch_rows: sequences of a step.
        lengths: of sequences.
        first_step_only: whether the optimizer has no states yet when others compute.
        uses_shm: whether weights are copied to `/dev/shm`.
        saves: whether a checkpoint is ever written.
        loader_processes: that read data, on the node that has the most of them.
        policy_copies: of the actor that a step keeps in host memory.
    """

    actor: Trainee
    lengths: Lengths
    critic: Trainee | None = None
    reference: str = ""
    engine: Engine | None = None
    reward: Engine | None = None
    nodes: int = 1
    gpus: int = 1
    batch_rows: int = 1
    first_step_only: bool = False
    uses_shm: bool = False
    saves: bool = True
    loader_processes: int = 0
    policy_copies: int = 0
