"""Types and ranges of single values, each where verl 0.9.1 or an engine needs it; most are read after GPUs are up.

verl's dataclasses do not check the types of their fields: `optim.lr=abc` is built, and ends the job in the optimizer.
A row says when a value is read, so that what is never read is never refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cloudrl.verl import keys
from cloudrl.verl.async_modes import ASYNC, SEPARATE
from cloudrl.verl.keys import ACTOR, CRITIC, MODEL, REF, ROLLOUT
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.setting import BATCH, MODE, SAMPLER, Setting

_TRAINER = "trainer/ppo/v1/trainer_base.py"
_SAMPLING = "workers/rollout/vllm_rollout/vllm_async_server.py: SamplingParams"
_OPTIMIZER = "workers/config/optimizer.py: build_optimizer"


@dataclass(frozen=True)
class Row:
    """What a value has to be.

    Attributes:
        key: dotted.
        at: where verl reads it.
        is_whole: whether it is a whole number; else any number.
        low, high: limits; None means none.
        above: whether the lower limit itself is too low.
        null: whether it may be left out.
        flag: whether true and false count as 1 and 0, as Python compares them.
    """

    key: str
    at: str
    is_whole: bool = True
    low: float | None = None
    high: float | None = None
    above: bool = False
    null: bool = False
    flag: bool = False

    def allows(self, value: Any) -> bool:
        """Whether a value will do."""
        if value is None:
            return self.null
        if isinstance(value, bool) and not self.flag:
            return False
        if not isinstance(value, int if self.is_whole else (int, float)):
            return False
        too_low = self.low is not None and (value <= self.low if self.above else value < self.low)
        return not math.isnan(value) and not too_low and not (self.high is not None and value > self.high)

    @property
    def wanted(self) -> str:
        """In words."""
        kind = "a whole number" if self.is_whole else "a number"
        low = "" if self.low is None else f" above {self.low:g}" if self.above else f" of at least {self.low:g}"
        return f"{kind}{low}" + ("" if self.high is None else f" and at most {self.high:g}")


def values_are_possible(setting: Setting) -> Iterator[Problem]:
    """Numbers that are text, null, or out of range."""
    yield from wrong_values(setting, _rows(setting))


def wrong_values(setting: Setting, rows: Iterator[Row]) -> Iterator[Problem]:
    """What rows do not allow; a key that is not there, or follows another one, is left out."""
    for row in rows:
        parent, _, name = row.key.rpartition(".")
        section = setting.get(parent)
        if not isinstance(section, Mapping) or name not in section or row.allows(section[name]):
            continue
        if setting.follows(row.key):
            continue
        value, default = section[name], setting.default(row.key)
        shown = "null" if value is None else str(value)[:60]
        hint = f"{row.key}={default}" if default not in (value, None, "???") else f"{row.key}=null" * row.null
        yield Problem(f"{row.key}={shown}: verl needs {row.wanted} here ({row.at})", _mended(row, value) or hint)


def flags_for_numbers(setting: Setting) -> Iterator[str]:
    """True and false where verl counts, which it takes for 1 and 0."""
    for row in _rows(setting):
        if row.flag and isinstance(value := setting.get(row.key), bool):
            yield f"{row.key}={value} counts as {int(value)}: is that meant?"


def files_are_read(setting: Setting) -> Iterator[Problem]:
    """utils/dataset/rl_dataset.py: RLHFDataset, _read_files_and_tokenize; trainer/ppo/checkpoint_callback.py."""
    callback = setting.get(keys.CALLBACK)
    if setting.is_v1 and callback and (not isinstance(callback, str) or "." not in callback):
        yield Problem(f"{keys.CALLBACK}={callback}: verl needs the name of a class, with its module",
                      f"{keys.CALLBACK}=null")  # fmt: skip
    steps = setting.get("global_profiler.steps")
    if setting.is_v1 and setting.trains and steps is not None and not isinstance(steps, list):
        yield Problem(f"global_profiler.steps={steps}: verl needs a list (trainer/ppo/v1/trainer_base.py: fit)",
                      "global_profiler.steps=null")  # fmt: skip
    if setting.get("data.custom_cls.path"):
        return
    for key in (keys.TRAIN_FILES, keys.VAL_FILES):
        value = setting.get(key)
        for file in value if isinstance(value, list) else [value]:
            if setting.has(key) and not (isinstance(file, str) and file.endswith(_FORMATS)):
                shown = "null" if file is None else file
                wanted = (
                    f"verl reads {', '.join(_FORMATS)}" if isinstance(file, str) else "verl needs the paths of files"
                )
                yield Problem(f"{key}={shown}: {wanted} (utils/dataset/rl_dataset.py: RLHFDataset)")
                break


_FORMATS = (".parquet", ".json", ".jsonl")
_ADAM = {
    "lr",
    "betas",
    "eps",
    "weight_decay",
    "amsgrad",
    "maximize",
    "foreach",
    "capturable",
    "differentiable",
    "fused",
}
_ARGUMENTS = {
    "Adam": _ADAM | {"decoupled_weight_decay"},
    "AdamW": _ADAM,
    "SGD": {
        "lr",
        "momentum",
        "dampening",
        "weight_decay",
        "nesterov",
        "maximize",
        "foreach",
        "differentiable",
        "fused",
    },
}
"""Of `torch.optim` (torch 2.11)."""


def optimizers_know_their_options(setting: Setting) -> Iterator[Problem]:
    """workers/config/optimizer.py: build_optimizer, with override_optimizer_config."""
    for role in (ACTOR, CRITIC) if setting.uses_critic else (ACTOR,):
        section = f"{role}.optim"
        name, options = setting.get(f"{section}.optimizer"), setting.get(f"{section}.override_optimizer_config")
        is_torchs = setting.is_fsdp(role) and setting.get(f"{section}.optimizer_impl") == "torch.optim"
        if is_torchs and options and not isinstance(options, Mapping):
            yield Problem(f"{section}.override_optimizer_config={options}: verl needs a mapping here ({_OPTIMIZER})",
                          f"{section}.override_optimizer_config=null")  # fmt: skip
        if not is_torchs or str(name) not in _ARGUMENTS or not isinstance(options, Mapping):
            continue
        for option in options:
            if option not in _ARGUMENTS[str(name)]:
                yield Problem(f"{section}.override_optimizer_config.{option}: {name} of torch has no such option")


def _mended(row: Row, value: Any) -> str:
    """A percentage that was meant as a fraction, or a whole number that was written as another, such as `1e3`."""
    if row.is_whole and isinstance(value, float) and value.is_integer() and row.allows(int(value)):
        return f"{row.key}={int(value)}"
    is_percent = row.high == 1 and isinstance(value, (int, float)) and not isinstance(value, bool) and 2 <= value <= 100
    return f"{row.key}={value / 100:g}" if is_percent else ""


def _rows(setting: Setting) -> Iterator[Row]:
    yield from _of_trainer(setting)
    yield from _of_data(setting)
    yield from _of_rollout(setting)
    yield from _of_sampling(setting)
    for role in (ACTOR, CRITIC) if setting.uses_critic else (ACTOR,):
        yield from _of_optimizer(setting, role)
        yield from _of_batches(setting, role)
    yield from _of_losses(setting)
    yield from _of_engines(setting)
    if not setting.whole(f"{MODEL}.lora.rank"):
        yield Row(f"{MODEL}.lora_rank", "utils/config.py: validate_config", is_whole=False)


def _of_trainer(setting: Setting) -> Iterator[Row]:
    yield Row(keys.NODES, f"{_TRAINER}: _init_resource_pool_mgr", low=1)
    yield Row(keys.GPUS, f"{_TRAINER}: _init_resource_pool_mgr", low=1)
    yield Row(keys.EPOCHS, f"{_TRAINER}: _init_dataloader", is_whole=False)
    yield Row(keys.STEPS, f"{_TRAINER}: _init_dataloader", is_whole=False, null=True)
    if setting.trains:
        yield Row(keys.SAVE_FREQ, f"{_TRAINER}: fit", is_whole=False, flag=True)
        yield Row(keys.TEST_FREQ, f"{_TRAINER}: fit", is_whole=False, flag=True)
        yield Row("trainer.critic_warmup", f"{_TRAINER}: _step_once", is_whole=False)
    if not setting.is_v1:
        return
    mode = setting.get(MODE)
    yield Row(f"trainer.v1.{mode}.parameter_sync_step", f"{_TRAINER}: step", low=1)
    if mode in ASYNC:
        yield Row(f"trainer.v1.{mode}.num_warmup_batches", f"{_TRAINER}: _add_async_warmup_batches", is_whole=False)
    if not setting.get(SAMPLER):
        replay = "trainer/ppo/v1/replay_buffer.py: ReplayBuffer"
        yield Row("trainer.v1.sampler.max_off_policy_threshold", replay, low=1, null=True)
        if setting.get("algorithm.filter_groups.enable") and mode == "sync":
            yield Row("algorithm.filter_groups.max_inflight_gen_batches", replay, low=1)


def _of_data(setting: Setting) -> Iterator[Row]:
    at = f"{_TRAINER}: _init_dataloader"
    yield Row(BATCH, at, low=1)
    yield Row("data.dataloader_num_workers", at, low=0, flag=True)
    yield Row("data.val_batch_size", at, low=0, null=True)
    if setting.counts_generated:
        yield Row("data.gen_batch_size", at, low=0, null=True)
    if setting.get("data.shuffle") and not setting.get("data.sampler.class_path"):
        yield Row("data.seed", "trainer/ppo/utils.py: create_rl_sampler", null=True)
    if not setting.get("data.custom_cls.path"):
        dataset = "utils/dataset/rl_dataset.py: RLHFDataset"
        for key in ("data.train_max_samples", "data.val_max_samples"):
            rows = setting.get(key)  # as many rows as there are, or more, are never counted out
            is_part = isinstance(rows, float) and rows > 0 and not rows.is_integer()
            yield Row(key, dataset, is_whole=is_part, flag=True)
        if setting.get("data.filter_overlong_prompts"):
            yield Row("data.max_prompt_length", dataset, is_whole=False)
    yield Row("data.max_response_length", "experimental/agent_loop/single_turn_agent_loop.py: response_length", low=1)


def _of_rollout(setting: Setting) -> Iterator[Row]:
    for size in ("tensor_model", "data", "pipeline_model"):
        yield Row(f"{ROLLOUT}.{size}_parallel_size", "workers/rollout/replica.py: RolloutReplica", low=1)
    if not setting.is_v1 or setting.get(MODE) != SEPARATE:  # which `pools_fit_the_cluster` looks at
        yield Row(f"{ROLLOUT}.n_gpus_per_node", "workers/rollout/replica.py: RolloutReplica", low=1)
    yield Row(f"{ROLLOUT}.n", "trainer/ppo/v1/agent_loop_tq.py: _run_prompt", low=1)
    bucket = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
    yield Row(bucket, "workers/engine_workers.py: init_model", low=1)
    if not setting.get(f"{ROLLOUT}.agent.agent_loop_manager_class"):
        yield Row(f"{ROLLOUT}.agent.num_workers", "experimental/agent_loop/agent_loop.py: num_workers", low=1)
    yield Row("reward.num_workers", "experimental/reward_loop/reward_loop.py: RewardLoopManager", low=1)
    if setting.get(f"{ROLLOUT}.name") in ("vllm", "sglang"):
        server = "workers/rollout/vllm_rollout/vllm_async_server.py: launch_server"
        yield Row(f"{ROLLOUT}.gpu_memory_utilization", server, is_whole=False, low=0, high=1, above=True)
        yield Row(f"{ROLLOUT}.max_model_len", server, low=1, null=True)
        yield Row(f"{ROLLOUT}.max_num_batched_tokens", server, low=1, null=True)
        yield Row(f"{ROLLOUT}.max_num_seqs", server, low=1, null=True)


def _of_sampling(setting: Setting) -> Iterator[Row]:
    validates = setting.get("trainer.val_before_train") is not False or (setting.whole("trainer.test_freq") or 0) > 0
    parts = [ROLLOUT, *([f"{ROLLOUT}.val_kwargs"] if validates else [])]
    if setting.get(f"{ROLLOUT}.name") not in ("vllm", "sglang"):
        return
    for part in parts:
        yield Row(f"{part}.temperature", _SAMPLING, is_whole=False, low=0)
        yield Row(f"{part}.top_p", _SAMPLING, is_whole=False, low=0, high=1, above=True)
        yield Row(f"{part}.top_k", _SAMPLING, low=-1)
    if validates:
        yield Row(f"{ROLLOUT}.val_kwargs.n", f"{_TRAINER}: _validate", low=1)


def _of_optimizer(setting: Setting, role: str) -> Iterator[Row]:
    section = f"{role}.optim"
    if setting.get(f"{section}.optimizer_impl") == "torch.optim" or setting.get(f"{role}.strategy") == "megatron":
        yield Row(f"{section}.lr", _OPTIMIZER, is_whole=False, low=0)
        yield Row(f"{section}.weight_decay", _OPTIMIZER, is_whole=False, low=0)
    if setting.is_fsdp(role):
        scheduler = "workers/engine/fsdp/transformer_impl.py: _build_lr_scheduler"
        yield Row(f"{section}.lr_warmup_steps", scheduler, is_whole=False)
        if (setting.whole(f"{section}.lr_warmup_steps") or 0) <= 0:
            yield Row(f"{section}.lr_warmup_steps_ratio", scheduler, is_whole=False)
        if setting.get(f"{section}.grad_clip") is None and setting.trains and role in setting.ever_trained:
            yield Row(f"{section}.clip_grad", "workers/engine/fsdp/transformer_impl.py: optimizer_step", is_whole=False)


def _of_batches(setting: Setting, role: str) -> Iterator[Row]:
    if setting.trains and role in setting.ever_trained:
        update = "_update_critic" if role == CRITIC else "_update_actor"
        yield Row(f"{role}.ppo_mini_batch_size", f"{_TRAINER}: {update}", low=1)
        yield Row(f"{role}.ppo_epochs", f"{_TRAINER}: {update}", low=1)
    micro = "workers/engine/utils.py: prepare_micro_batches"
    if role == CRITIC or not setting.trains:  # its engine always counts tokens
        return
    if setting.get(f"{role}.use_dynamic_bsz"):
        yield Row(f"{role}.ppo_max_token_len_per_gpu", micro, is_whole=False, low=0, above=True)
        if setting.computes_log_probs:
            yield Row(f"{ROLLOUT}.log_prob_max_token_len_per_gpu", micro, is_whole=False, low=0, above=True)
    else:
        yield Row(f"{role}.ppo_micro_batch_size_per_gpu", micro, low=1, null=True)
        if setting.computes_log_probs:
            yield Row(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", micro, low=1, null=True)
    if REF in setting.built and setting.get(f"{REF}.log_prob_use_dynamic_bsz"):
        yield Row(f"{REF}.log_prob_max_token_len_per_gpu", micro, is_whole=False, low=0, above=True)
    elif REF in setting.built:
        yield Row(f"{REF}.log_prob_micro_batch_size_per_gpu", micro, low=1, null=True)


def _of_losses(setting: Setting) -> Iterator[Row]:
    if not setting.trains:
        return
    algorithms = "trainer/ppo/core_algos.py"
    if ACTOR in setting.ever_trained and not setting.get("distillation.enabled"):
        yield from _of_policy_loss(setting, algorithms)
    if setting.get("algorithm.use_kl_in_reward"):
        controller = f"{algorithms}: get_kl_controller"
        yield Row("algorithm.kl_ctrl.kl_coef", controller, is_whole=False)
        if setting.get("algorithm.kl_ctrl.type") == "adaptive":
            yield Row("algorithm.kl_ctrl.horizon", controller, is_whole=False, low=0, above=True)
    if setting.get(keys.ESTIMATOR) == "gae":
        for name in ("gamma", "lam"):
            yield Row(f"algorithm.{name}", f"{algorithms}: compute_gae_advantage_return", is_whole=False)
    if setting.uses_critic:
        yield Row(f"{CRITIC}.cliprange_value", "workers/utils/losses.py: value_loss", is_whole=False)


def _of_policy_loss(setting: Setting, algorithms: str) -> Iterator[Row]:
    yield Row(f"{ACTOR}.entropy_coeff", f"{_TRAINER}: _update_actor", is_whole=False)
    if setting.get(f"{ACTOR}.use_kl_loss"):
        yield Row(f"{ACTOR}.kl_loss_coef", "workers/utils/losses.py: ppo_loss", is_whole=False)
    loss = str(setting.get(f"{ACTOR}.policy_loss.loss_mode"))
    if loss == "vanilla":
        at = f"{algorithms}: compute_policy_loss_vanilla"
        sides = [f"clip_ratio_{side}" for side in ("low", "high")]
        if any(setting.get(f"{ACTOR}.{name}") is None for name in sides):
            sides.append("clip_ratio")
        for name in sides:
            yield Row(f"{ACTOR}.{name}", at, is_whole=False, null=True)
        yield Row(f"{ACTOR}.clip_ratio_c", at, is_whole=False, low=1, above=True)
    of_loss = {"clip_cov": "clip_cov_ratio", "kl_cov": "kl_cov_ratio", "dro": "dro_beta"}
    if loss in of_loss:
        name = of_loss[loss]
        yield Row(f"{ACTOR}.policy_loss.{name}", f"{algorithms}: {name}", is_whole=False, low=0, above=True)


def _of_engines(setting: Setting) -> Iterator[Row]:
    for role in setting.built:
        section = f"{role}.{'fsdp' if role == CRITIC else 'fsdp_config'}"
        if setting.is_fsdp(role) and setting.whole(f"{section}.fsdp_size") != -1:
            engine = "workers/engine/fsdp/utils.py: create_device_mesh"
            yield (
                Row(f"{section}.fsdp_size", engine)
                if setting.get(f"{section}.fsdp_size") != 0
                else Row(f"{section}.fsdp_size", engine, low=1)
            )
        if setting.is_fsdp(role):
            sequence = setting.sequence_parallel(role)[0]
            yield Row(sequence, "workers/engine/fsdp/transformer_impl.py: get_data_parallel_size", low=1)
        if setting.get(f"{role}.strategy") == "megatron" and role == setting.built_first:
            mesh = "workers/engine/megatron/transformer_impl.py: _init_device_mesh"
            for size in ("tensor_model", "pipeline_model", "context", "expert_model"):
                yield Row(f"{role}.megatron.{size}_parallel_size", mesh, low=1)
            yield Row(f"{role}.megatron.expert_tensor_parallel_size", mesh, low=1, null=True)


RULES = (
    values_are_possible,
    files_are_read,
    optimizers_know_their_options,
)
