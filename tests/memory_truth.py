"""The truth set: runs that somebody published, each with what became of it, as settings of verl 0.9.1.

`memory_truth.yml` names the source of each. Its rows use the short names of `KEYS`.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cloudrl.spec.yaml_core import load_value
from cloudrl.verl.command import SFT_CONFIG
from cloudrl.verl.composition import compose
from cloudrl.verl.keys import ACTOR, CRITIC, MODEL, REF, ROLLOUT
from cloudrl.verl.memory.fine_tuning import fine_tuning_workload
from cloudrl.verl.memory.reading import workload_of
from cloudrl.verl.memory.verdict import Estimate
from cloudrl.verl.memory.workload import Lengths, Machine
from cloudrl.verl.model_config import ModelConfig, known_model
from cloudrl.verl.releases import RELEASE
from cloudrl.verl.setting import Setting

ROWS = Path(__file__).with_name("memory_truth.yml")
_FSDP, _MEGATRON = f"{ACTOR}.fsdp_config", f"{ACTOR}.megatron"
KEYS: Mapping[str, tuple[str, ...]] = {
    "gpus": ("trainer.n_gpus_per_node",), "nodes": ("trainer.nnodes",), "prompt": ("data.max_prompt_length",),
    "response": ("data.max_response_length",), "n": (f"{ROLLOUT}.n",), "batch": ("data.train_batch_size",),
    "mini": (f"{ACTOR}.ppo_mini_batch_size", f"{CRITIC}.ppo_mini_batch_size"),
    "dyn": (f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz", f"{CRITIC}.use_dynamic_bsz"),
    "micro": (f"{ACTOR}.ppo_micro_batch_size_per_gpu",), "tokens": (f"{ACTOR}.ppo_max_token_len_per_gpu",),
    "lp_micro": (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",),
    "lp_tokens": (f"{ROLLOUT}.log_prob_max_token_len_per_gpu",),
    "sp": (f"{_FSDP}.ulysses_sequence_parallel_size",), "fsdp_size": (f"{_FSDP}.fsdp_size",),
    "dtype": (f"{_FSDP}.model_dtype",), "rmpad": (f"{MODEL}.use_remove_padding", f"{_MEGATRON}.use_remove_padding"),
    "offload_policy": (f"{_FSDP}.offload_policy",), "compile": (f"{_FSDP}.use_torch_compile",),
    "gc": (f"{MODEL}.enable_gradient_checkpointing",), "fused": (f"{MODEL}.use_fused_kernels",),
    "chunk": (f"{_FSDP}.entropy_from_logits_with_chunking",),
    "no_sync": (f"{_FSDP}.use_no_sync_for_gradient_accumulation",),
    "param_offload": (f"{_FSDP}.param_offload", f"{_MEGATRON}.param_offload", f"{REF}.megatron.param_offload"),
    "optim_offload": (f"{_FSDP}.optimizer_offload", f"{_MEGATRON}.optimizer_offload"),
    "lora": (f"{MODEL}.lora_rank",), "layered": (f"{ROLLOUT}.layered_summon",),
    "c_offload": (f"{CRITIC}.fsdp.param_offload", f"{CRITIC}.fsdp.optimizer_offload"),
    "c_micro": (f"{CRITIC}.ppo_micro_batch_size_per_gpu",), "c_tokens": (f"{CRITIC}.ppo_max_token_len_per_gpu",),
    "tp": (f"{ROLLOUT}.tensor_model_parallel_size",), "util": (f"{ROLLOUT}.gpu_memory_utilization",),
    "max_len": (f"{ROLLOUT}.max_model_len",), "seqs": (f"{ROLLOUT}.max_num_seqs",),
    "batched": (f"{ROLLOUT}.max_num_batched_tokens",), "sleep": (f"{ROLLOUT}.free_cache_engine",),
    "mtp": (f"{_MEGATRON}.tensor_model_parallel_size",), "mpp": (f"{_MEGATRON}.pipeline_model_parallel_size",),
    "mep": (f"{_MEGATRON}.expert_model_parallel_size",), "mcp": (f"{_MEGATRON}.context_parallel_size",),
    "cpu_adam": (f"{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload",),
    "steps": ("trainer.total_training_steps",), "rollout": (f"{ROLLOUT}.name",),
}  # fmt: skip
SFT_KEYS: Mapping[str, tuple[str, ...]] = {
    "gpus": ("trainer.n_gpus_per_node",), "nodes": ("trainer.nnodes",), "mini": ("data.train_batch_size",),
    "micro": ("data.micro_batch_size_per_gpu",), "dyn": ("data.use_dynamic_bsz",),
    "tokens": ("data.max_token_len_per_gpu",), "engine": ("engine.strategy",), "dtype": ("engine.model_dtype",),
    "sp": ("engine.ulysses_sequence_parallel_size",), "fsdp_size": ("engine.fsdp_size",),
    "param_offload": ("engine.param_offload",), "optim_offload": ("engine.optimizer_offload",),
    "offload_policy": ("engine.offload_policy",), "rmpad": ("model.use_remove_padding",),
    "gc": ("model.enable_gradient_checkpointing",), "fused": ("model.use_fused_kernels",),
    "lora": ("model.lora_rank",),
}  # fmt: skip
"""Of a row with `sft`, whose loss has no entropy: the keys of verl's fine-tuning."""
DEFAULTS = {
    "gpus": 8, "nodes": 1, "prompt": 512, "response": 512, "n": 1, "batch": 1024, "mini": 256, "dyn": False,
    "micro": 1, "tp": 2, "rollout": "vllm",
}  # fmt: skip
_MODELS = {
    "qwen2.5-vl-3b": "Qwen/Qwen2.5-VL-3B-Instruct", "r1-qwen-1.5b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "llama3.2-3b": "meta-llama/Llama-3.2-3B", "llama3.1-70b": "meta-llama/Llama-3.1-70B",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3", "llama3.1-8b": "meta-llama/Llama-3.1-8B",
}  # fmt: skip
_BYTES = {2: "bf16", 4: "fp32"}


@dataclass(frozen=True)
class Row:
    """A run that somebody published.

    Attributes:
        name: of the row.
        seen: "fits" or "oom"; "" where only figures are known.
        figures: what it printed, in GiB.
        estimate: what we say.
        setting: its configuration, where it is one of verl's reinforcement learning.
        release: of verl; (0, 0) where the source does not say.
    """

    name: str
    seen: str
    figures: Mapping[str, float]
    estimate: Estimate
    setting: Setting | None
    release: tuple[int, ...]

    @property
    def is_minimum(self) -> bool:
        """Whether it is in verl's table of the least that a model needs."""
        return self.name.startswith("min-")


def model_named(short: str) -> ModelConfig:
    """The model of a row."""
    found = known_model(_MODELS.get(short, f"Qwen/{short}"))
    assert found is not None, short
    return found


@functools.cache
def _base(engine: str) -> Mapping[str, Any]:
    words = (f"model_engine={'megatron' if engine == 'megatron' else 'dp'}", f"{ROLLOUT}.name=vllm")
    composed = compose(RELEASE.verl, words)
    assert composed.values is not None, composed.problems
    return composed.values


def with_values(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with these dotted keys; sections that there are not are left out."""
    found = copy.deepcopy(dict(values))
    for key, value in changes.items():
        *sections, name = key.split(".")
        at: Any = found
        for section in sections:
            at = at.setdefault(section, {}) if section == "override_optimizer_config" else at.get(section)
            if at is None:
                break
        if at is not None:
            at[name] = value
    return found


def setting_of(job: Mapping[str, Any]) -> Setting:
    """The configuration that a row's short names mean."""
    job = {**DEFAULTS, **job}
    engine = job.get("engine", "fsdp")
    changes = {key: value for name, value in job.items() for key in KEYS.get(name, ())}
    changes["algorithm.adv_estimator"] = "gae" if job.get("critic") else "grpo"
    changes["trainer.save_freq"] = 1
    changes[f"{ACTOR}.use_kl_loss"] = job.get("ref", True)
    changes[f"{ACTOR}.entropy_coeff"] = 0.001 if job.get("entropy") else 0
    changes[f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"] = int(1024 * job.get("bucket", 2))
    for role in (ACTOR, REF, CRITIC):
        changes[f"{role}.strategy"] = engine
    for name, key in (
        ("lp_micro", "log_prob_micro_batch_size_per_gpu"),
        ("lp_tokens", "log_prob_max_token_len_per_gpu"),
    ):
        if name not in job:
            changes[f"{ROLLOUT}.{key}"] = job.get("micro" if name == "lp_micro" else "tokens")
    if "c_micro" not in job:
        changes[f"{CRITIC}.ppo_micro_batch_size_per_gpu"] = job["micro"]
    if "mini" not in job or "batch" not in job:
        changes["data.train_batch_size"] = max(job["batch"], job["mini"])
    if "dtype_bytes" in job:
        changes[f"{_FSDP}.model_dtype"] = _BYTES[job["dtype_bytes"]]
    if job.get("recompute"):
        changes[f"{_MEGATRON}.override_transformer_config.recompute_granularity"] = "full"
    if "max_len" not in job and not job.get("verl", "").startswith("0.9"):  # older ones took the sum of both limits
        changes[f"{ROLLOUT}.max_model_len"] = job["prompt"] + job["response"]
    if job.get("colocated") is False:
        changes |= {"trainer.v1.trainer_mode": "separate_async", f"{ROLLOUT}.nnodes": 1}
    cluster = job["gpus"] * job["nodes"]
    return Setting(with_values(_base(engine), changes), cluster)


def sft_setting_of(job: Mapping[str, Any]) -> Setting:
    """The configuration of verl's fine-tuning that a row's short names mean."""
    composed = compose(RELEASE.verl, (), SFT_CONFIG)
    assert composed.values is not None, composed.problems
    job = {**DEFAULTS, "engine": "fsdp", "dtype": _BYTES[job.get("dtype_bytes", 4)], **job}
    changes = {key: value for name, value in job.items() for key in SFT_KEYS.get(name, ())}
    return Setting(with_values(composed.values, {**changes, "data.max_length": job["prompt"] + job["response"]}), 0)


def estimate_of(model: ModelConfig, job: Mapping[str, Any]) -> tuple[Estimate, Setting | None]:
    """What we say of a row, and its configuration."""
    lengths = Lengths(job.get("prompt", 512), job.get("response", 512), job.get("mean"))
    machine = Machine(job.get("gpu_gib", 79.1), host_gib=job.get("host_gib") or None, taken_gib=job.get("overhead", 0))
    is_sft = job.get("sft") and not job.get("entropy")
    setting = sft_setting_of(job) if is_sft else setting_of(job)
    work = fine_tuning_workload(setting, lengths) if is_sft else workload_of(setting, lengths)
    if job.get("flash_ce") is False:
        work = replace(work, actor=replace(work.actor, lacks_flash_attention=True))
    if job.get("sft") and not is_sft:  # its worker, with the loss of an actor
        work = replace(work, engine=None, reference="", critic=None)
    return Estimate(model, model, work, machine), None if job.get("sft") else setting


@functools.cache
def rows() -> tuple[Row, ...]:
    """All of them."""
    found = []
    for row in load_value(ROWS.read_text(encoding="utf-8"), ROWS.name):
        estimate, setting = estimate_of(model_named(row["model"]), {**row["job"], "verl": row.get("verl", "")})
        release = tuple(map(int, re.findall(r"\d+", row.get("verl", "0.0"))))
        found.append(Row(row["id"], row.get("verdict", ""), row.get("figures", {}), estimate, setting, release))
    return tuple(found)
